"""Figures of README and docs beside what their commands print.

A claim ties a place in a page to a place in the output of the command that the page names: two regular expressions, whose groups
hold the same numbers in the same order. One run of a command serves all its claims. A command that takes hours or a GPU has a
stored output, a page that it wrote; the claims are compared with that, unless it is named with `--run`. Where there is no stored
output either, `where` says what the command needs, and the claim is listed only.

    python benchmarks/claims.py --list          # all claims and commands; nothing runs
    python benchmarks/claims.py --quick         # commands of less than a minute on one core, and stored outputs
    python benchmarks/claims.py                 # all that one core can do in minutes
    python benchmarks/claims.py gray_scott      # commands that contain this text

Prints `page:line | claim | command | claimed | measured | holds` and exits with 1 if one does not hold. A number holds if it is
the measured one to the digits that are printed, or within the claim's tolerance: `relative` as a share of the claimed number,
`factor` up and down. Times on a shared machine have a factor, and say little but their order.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NUMBER = re.compile(r"(?<![\w.\-−])[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
WORDS = {"none": 0.0, "all": 100.0, "a sixth": 1 / 6, "a ninth": 1 / 9, "a seventeenth": 1 / 17, "twice": 2.0}
PAPER = "docs/results/paper.md"
SCENARIOS = ("allen-cahn", "fisher-kpp", "fitzhugh-nagumo", "cylinder", "sediments", "obstacles", "laser-heat")
Found = str | Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class Command:
    """A command as pages name it.

    `script` is what runs in an empty folder where the line alone would not do; `seconds` of one quiet core; `stored` is the page
    that the command wrote; `where` what it needs that a core does not have.
    """

    line: str
    seconds: float = 30
    script: str = ""
    stored: str = ""
    where: str = ""

    def output(self) -> str:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "ROOT": str(ROOT),
                                    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
        line = re.sub(r"(?<=[\s=])(examples|tests|docs)/", rf"{ROOT}/\1/", re.sub(r"^(dgnet|pytest)\b", r"python -m \1", self.line))
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["bash", "-c", "set -eo pipefail\n" + (self.script or line)], cwd=folder, env=environment,
                                  capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout


@dataclass(frozen=True)
class Claim:
    """`claimed` matches once in `page` of `command`; the numbers in its groups are those that `found` has in the output.

    `found` is a regular expression that matches the output, or a function of the output; empty where nothing can be run here.
    """

    page: str
    claimed: str
    command: str
    found: Found = ""
    relative: float = 0.0
    factor: float = 1.0

    def place(self) -> tuple[int, str, list[str]]:
        """Line, text and numbers of the claim in its page."""
        text = (ROOT / self.page).read_text()
        matches = list(re.finditer(self.claimed, text, re.M))
        if len(matches) != 1:
            raise LookupError(f"{self.page}: {len(matches)} places match {self.claimed!r}")
        (match,) = matches
        return text.count("\n", 0, match.start()) + 1, " ".join(match.group().split()), numbers(match.groups())

    def span(self) -> tuple[int, int]:
        (match,) = re.finditer(self.claimed, (ROOT / self.page).read_text(), re.M)
        return match.span()

    def measured(self, output: str) -> list[str]:
        if callable(self.found):
            return list(self.found(output))
        match = re.search(self.found, output, re.M)
        if match is None:
            raise LookupError(f"no {self.found!r} in the output")
        return numbers(match.groups())

    def holds(self, claimed: Sequence[str], measured: Sequence[str]) -> bool:
        return len(claimed) == len(measured) > 0 and all(self.near(a, b) for a, b in zip(claimed, measured))

    def near(self, a: str, b: str) -> bool:
        x, y = value(a), value(b)
        if self.factor > 1:
            return x / self.factor <= y <= x * self.factor
        return abs(x - y) <= 1.01 * (digit(a) + digit(b)) / 2 + self.relative * abs(x)


def numbers(groups: Sequence[str | None]) -> list[str]:
    """All numbers in the groups; a group that is one of `WORDS` is a number, too."""
    found: list[str] = []
    for group in groups:
        text = " ".join((group or "").split())
        found += [text] if text in WORDS else NUMBER.findall(text)
    return found


def value(number: str) -> float:
    return WORDS[number] if number in WORDS else float(number.replace(",", "").replace("−", "-"))


def digit(number: str) -> float:
    """One unit of the last digit printed."""
    if number in WORDS:
        return 0.0
    mantissa, _, exponent = number.replace(",", "").partition("e")
    return 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))


def cell(text: str, head: str, row: str, column: str, marks: bool = False) -> str:
    """The cell of the first table whose head begins with `head`; without its marks and brackets unless asked for."""
    lines = text.splitlines()
    (at, *_) = [k for k, line in enumerate(lines) if line.startswith(f"| {head} |")]
    names = [name.strip() for name in lines[at].strip("|").split("|")]
    for line in lines[at + 2:]:
        cells = [part.strip() for part in line.strip("|").split("|")]
        if not line.startswith("|"):
            break
        if cells[0] == row:
            found = cells[names.index(column)]
            return found if marks else re.sub(r"\(.*?\)|\*\*", "", found)
    raise LookupError(f"no row '{row}' below '{head}'")


def study(scenario: str, truth: str, *what: str, method: str = "dgnet") -> list[list[float]]:
    """Some entries of the stored paper-size trainings of a method that knows the reaction, a list for each seed."""
    found = []
    for line in (ROOT / "docs/results/study/cells.jsonl").read_text().splitlines():
        record = json.loads(line)
        one = record["cell"]
        if (one["kind"], one["scenario"], one["size"], one["truth"], one["method"], one["trajectories"], one["unknown_reaction"]) == (
                "train", scenario, "paper", truth, method, 0, False):
            flat = {**record["scores"][method], "updates": record.get("updates"), "seconds": record["seconds"].get("train"),
                    "classical": record["scores"]["classical_consistent"]["rne"]}
            found.append([flat[key] for key in what])
    return found


def shown(values: Iterable[float]) -> list[str]:
    return [f"{number:.6g}" for number in values]


def cells(*places: tuple[str, str, str]) -> Callable[[str], Sequence[str]]:
    """The numbers of some cells (head, row, column) of a page with tables."""
    return lambda text: numbers([cell(text, *place) for place in places])


def after(heading: str, found: Callable[[str], Sequence[str]]) -> Callable[[str], Sequence[str]]:
    """`found` in what follows a heading."""
    return lambda text: found(text[text.index(heading):])


def least(head: str, rows: Sequence[str], column: str) -> Callable[[str], Sequence[str]]:
    """The smallest of some rows of a column, with its spread."""
    def found(text: str) -> Sequence[str]:
        shown = [numbers([cell(text, head, row, column)]) for row in rows if "not" not in cell(text, head, row, column)]
        return min((one for one in shown if one), key=lambda one: value(one[0]))
    return found


def joined(*parts: Callable[[str], Sequence[str]]) -> Callable[[str], Sequence[str]]:
    return lambda text: [number for part in parts for number in part(text)]


def every(pattern: str, reduce: Sequence[Callable[[list[float]], float]]) -> Callable[[str], Sequence[str]]:
    """`reduce` applied to all numbers that a pattern with one group finds."""
    return lambda text: [f"{one([value(n) for n in re.findall(pattern, text, re.M)]):.6g}" for one in reduce]


LISTING = "python - <<'END'\nimport os, re\nfrom pathlib import Path\ntext = (Path(os.environ['ROOT']) / '{page}').read_text()\n" \
    "Path('{name}').write_text('\\n'.join(re.findall(r'^```{language}\\n(.*?)^```', text, re.S | re.M)))\nEND\n"
REPORT, STUDY = "dgnet report docs/results/study", "dgnet reproduce table-main --size paper --truth same-mesh"
COMMANDS = {c.line: c for c in (
    Command("python examples/heat_without_burning.py", 10),
    Command("python examples/without_finite_differences.py", 10),
    Command("python examples/gray_scott.py", 8),
    Command("python examples/unknown_material.py curves.png", 11),
    Command("python examples/new_source_3d.py", 15),
    Command("python examples/follow_a_plate.py 20", 25),
    Command("python examples/what_heats_the_plate.py 50", 300),
    Command("python examples/where_was_the_laser.py 50", 300),
    Command("python examples/coefficients_from_sensors.py 50", 300),
    Command("python examples/coefficients_from_sensors.py 15 latent", 200),
    Command("dgnet bench kernels", 25),
    Command("dgnet bench elements", 60),
    Command("dgnet bench step", 300),
    Command("dgnet bench rollout", 120),
    Command("dgnet check plate", 8, "dgnet new plate\ndgnet check plate"),
    Command("dgnet train plate --out run --budget 0.2", 50,
            "dgnet new plate\ndgnet train plate --out run --budget 0.2\ndgnet evaluate run --json scores.json\n"
            "printf 't,x,y,radius,power\\n0,0.05,0.04,0.014,100\\n5,0.05,0.04,0.014,100\\n15,0.28,0.04,0.014,100\\n' > mine.csv\n"
            "dgnet rollout run --source mine.csv\n"
            "python -c \"import json\nfor name, score in json.load(open('scores.json'))['scores'].items(): "
            "print(f'{name:22s} {score[chr(114) + chr(110) + chr(101) + chr(95) + \"from_offset\"]:.4f}')\""),
    Command("cc -std=c99 -O2 main.c plate.c -lm -o main && ./main", 12,
            LISTING.format(page="docs/how-to/export.md", name="main.c", language="c")
            + "dgnet new plate\ndgnet export plate --out plate.c\ncc -std=c99 -O2 main.c plate.c -lm -o main\n./main"),
    Command("pytest -s tests/training/test_bars.py", 60),
    # hours, or a GPU: the page that the command wrote is read
    Command(REPORT, 105, stored=PAPER),
    Command("dgnet report docs/results/study --dgnet docs/results/dgnet.md", 105, stored="docs/results/dgnet.md"),
    Command("docs/results/pretrained.md", 2, stored="docs/results/pretrained.md"),
    Command("dgnet bench any-mesh", 600, stored="docs/results/any-mesh.md"),
    Command("dgnet bench any-mesh --dim 3", 600, stored="docs/results/any-mesh-3d.md"),
    Command("dgnet bench any-mesh --flow", 600, stored="docs/results/any-mesh-flow.md"),
    Command("dgnet bench tune", 600, stored="docs/results/tune.md"),
    Command("dgnet bench equal", 600, stored="docs/results/equal.md"),
    Command("dgnet bench equal --dim 3", 600, stored="docs/results/equal-3d.md"),
    Command("dgnet bench model --device cuda", 600, stored="docs/results/model.md"),
    # listed only
    Command("dgnet bench elements --device cuda", 60, where="an H200"),
    Command("dgnet bench rollout --device cuda", 60, where="an H200"),
    Command("dgnet bench tradeoff", 900, where="an H200; 15 s of search for each of five scenarios"),
    Command("dgnet bench tradeoff RUN", 900, where="four runs, one to two minutes of training each"),
    Command("dgnet train melting --size paper --unknown-curves --trajectories 4", 900, where="an H200"),
    Command(STUDY, 4 * 3600, where="an H200, four hours with 14 processes; baselines"),
    Command("dgnet evaluate --pretrained NAME --trajectories 2 --device cuda", 900, where="an H200"),
    Command("dgnet bench export RUN", 900, where="data and weights of six scenarios of paper size, an hour"),
    Command("dgnet train melting --unknown-curves --out run --budget 3", 240, where="three trainings of three minutes"),
    Command("tests/training/test_identify.py", 7200, where="135 identifications by `judged`, two hours"),
    Command("pytest -m slow -s tests/studio/test_browser.py -k speed", 300, where="Chromium and playwright"),
)}


def report_row(name: str, unknown: bool = True) -> Callable[[str], Sequence[str]]:
    """A row of README's table against converged truth, from the tables of the report."""
    column, others = "RNE from offset", ("DeepONet", "MGN", "MP-PDE", "BENO", "PhyMPGN", "POD–Galerkin", "operator inference")
    first, last = [(name, "DGNet, ours", column)], [(name, row, column) for row in
        ("classical, consistent", "classical, lumped", "classical, quadratic", "classical, mesh refined", "DGNet, paper's")]
    middle = [(name, "DGNet, ours, reaction unknown", column)] if unknown else [(name, "universal weights, no data of it", column)]
    return joined(after("### Scenario by scenario", cells(*first, *middle, *last)),
                  after("### Scenario by scenario", lambda text: least(name, others, column)(text)[:1]))


def same_mesh(row: str, pick: slice = slice(None)) -> Callable[[str], Sequence[str]]:
    """A row of the main table against same-mesh truth."""
    return after("## Paper size, same-mesh truth", cells(*[("RNE", row, name) for name in SCENARIOS[pick]]))


SENSORS, FOLLOW, DESIGN, UNIVERSAL = "docs/how-to/sensors.md", "docs/how-to/follow.md", "docs/how-to/design.md", "docs/universal.md"
TUTORIAL, LIGHTS = "docs/tutorial.md", "docs/results/highlights.md"
LASERS, TRACK, FOLLOWED = (f"python examples/{name}" for name in ("what_heats_the_plate.py 50", "where_was_the_laser.py 50", "follow_a_plate.py 20"))
FACTORS, LATENT = "python examples/coefficients_from_sensors.py 50", "python examples/coefficients_from_sensors.py 15 latent"
BURNING, MATERIAL = "python examples/heat_without_burning.py", "python examples/unknown_material.py curves.png"
KERNELS, CARDS, DGNET = "dgnet bench kernels", "docs/results/pretrained.md", "dgnet report docs/results/study --dgnet docs/results/dgnet.md"
CHECK, TRAIN, BARS = "dgnet check plate", "dgnet train plate --out run --budget 0.2", "pytest -s tests/training/test_bars.py"
MELTED, TRADE = "dgnet train melting --size paper --unknown-curves --trajectories 4", "dgnet bench tradeoff"
ANY = {"": "dgnet bench any-mesh", "-3d": "dgnet bench any-mesh --dim 3", "-flow": "dgnet bench any-mesh --flow"}
FOUR = ("pulsed", "ring", "line", "step")
TWO = r" \(\d+\): rms error (\S+) \(median\), (\S+) \(largest\); (\S+) inside"
THREE = r" \(\d+\): rms error (\S+), (\S+) \(median\), (\S+) \(largest\); (\S+) inside"


def card(*names: str, columns: Sequence[str] = ("DGNet",)) -> Callable[[str], Sequence[str]]:
    """Numbers of the cards of shipped weights, converged truth."""
    def found(text: str) -> Sequence[str]:
        rows = "\n".join(line for line in text.splitlines() if "| same-mesh |" not in line)
        return cells(*[("scenario", name, column) for name in names for column in columns])(rows)
    return found


CLAIMS = [
    # examples
    Claim(SENSORS, r"^\| 25 that swing smoothly \| (.*) \|$", LASERS, "swinging" + TWO),
    Claim(SENSORS, r"^\| 25 that are switched on and off .*? \| (.*) \|$", LASERS, "switched" + TWO),
    Claim(SENSORS, r"random places of the same 100 leave (\d+) times", LASERS, r"chosen ones: (\S+)"),
    Claim(SENSORS, r"^\| the path .*? \| (\S+) mesh spacings \| (\S+) \| (\S+) \|$", TRACK,
          r"path \(\d+\): (\S+) mesh.*?, (\S+) \(largest\); (\S+) inside"),
    Claim(SENSORS, r"^\| the laser's power .*? \| (\S+) \| (\S+) \| (\S+) \|$", TRACK,
          r"power \(\d+\): (\S+) rms.*?, (\S+) \(largest\); (\S+) inside"),
    Claim(SENSORS, r"^\| the start, where .*?\(rms\) \| (\S+) of its range \| (\S+) \| (\S+) ", TRACK,
          r"start \(\d+\): (\S+) of its.*?, (\S+) \(largest\).*?; (\S+) of all"),
    Claim(SENSORS, r"seen so well at (\S+) of the nodes", TRACK, r"that is at (\S+) of the nodes"),
    Claim(SENSORS, r"steps, (\S+) unknown numbers: (\S+) rollouts against (\S+),", "python examples/without_finite_differences.py",
          r"(\d+) unknown numbers: (\d+) rollouts by kernels, (\d+) by"),
    Claim(SENSORS, r"the answers equal to (\S+) standard deviations", "python examples/without_finite_differences.py",
          r"differ by at most (\S+)", factor=5),
    *[Claim(SENSORS, rf"^\| {there} \| (.*) \|(?=\n(?:\|.*\n)*\nOn the given)", FACTORS, here + THREE)
      for there, here in (("diffusion in the east", "diffusion in east"), ("diffusion in the west", "diffusion in west"),
                          ("convection", "convection"))],
    *[Claim(SENSORS, rf"^\| {there} \| (.*) \|(?=\n(?:\|.*\n)*\nFifteen)", LATENT, here + THREE)
      for there, here in (("latent heat", "latent"), ("convection", "convection"), ("diffusion in the east", "diffusion in east"),
                          ("diffusion in the west", "diffusion in west"))],
    Claim(FOLLOW, r"inside the bands of 90% \| (\S+) \|", FOLLOWED, r"(\S+) of the field inside"),
    Claim(FOLLOW, r"rms error of the field, of its range \| (\S+) \|", FOLLOWED, r"rms error (\S+) of its"),
    Claim(FOLLOW, r"chi-square per reading .*? \| (\S+) \|", FOLLOWED, r"chi-square per reading (\S+)"),
    Claim(FOLLOW, r"alarm after a lamp was switched on .*? \| (all) \|", FOLLOWED, r"lamp was switched on: (\S+) of plates"),
    Claim(FOLLOW, r"alarm within 30 rows .*? \| (none) \|", FOLLOWED, r"in 30 rows: (\S+)"),
    Claim("docs/limits.md", r"(\S+) of the truth was\n +inside the bands of 90% on 20 plates", FOLLOWED, r"(\S+) of the field inside"),
    *[Claim(page, r"nothing above 346 K \| (.*?) \| [^|]* \| (\S+) \| (\S+) K", BURNING,
            r"three lasers: (\d+) rollouts, .*? missed by (\S+) and the hottest node is at (\S+) K") for page in (DESIGN,)],
    Claim(DESIGN, r"nothing above 320 K \| (.*?) \| [^|]* \| (\S+) \| (\S+) K", BURNING,
          r"a path: (\d+) rollouts, .*? missed by (\S+) and the hottest node is at (\S+) K", relative=0.3),
    Claim(DESIGN, r"nothing above 346 K \| \d+ \| (\S+) s", BURNING, r"three lasers: \d+ rollouts, (\S+) s", factor=4),
    Claim(DESIGN, r"nothing above 320 K \| \S+ \| (\S+) s", BURNING, r"a path: \d+ rollouts, (\S+) s", factor=4),
    Claim("docs/how-to/unknown-material.md", r"^capacity: (.*)\n^diffusion: (.*)\n^error of new heatings: (.*)\n^latent heat (.*)$",
          MATERIAL, r"^capacity: (.*)\n^diffusion: (.*)\n^error of new heatings: (.*)\n^latent heat (.*)$", relative=0.02),
    Claim("docs/how-to/unknown-reaction.md", r"^r_u = (.*)\n^r_v = (.*)\n^error of new trajectories: (.*)$",
          "python examples/gray_scott.py", r"^r_u = (.*)\n^r_v = (.*)\n^error of new trajectories: (.*)$", relative=0.02),
    Claim("docs/how-to/moving-source.md", r"the error there is (a ninth) of the classical", "python examples/new_source_3d.py",
          lambda text: [f"{value(a) / value(b):.2g}" for a, b in re.findall(r"coil.*dgnet: (\S+).*consistent: (\S+)", text)], 0.25),
    Claim("docs/how-to/export.md", r"It prints `5 s: at most (\S+) K`", "cc -std=c99 -O2 main.c plate.c -lm -o main && ./main",
          r"5 s: at most (\S+) K"),
    Claim("docs/how-to/unknown-coefficient.md", r"diffusivities that are fitted (\d+) to (\d+)% off with standard errors of (\S+) to (\S+)%",
          BARS, lambda text: joined(every(r"diffusion: fitted [-+](\S+)%", (min, max)), every(r"diffusion: .*noise (\S+)%", (min, max)))(text),
          relative=0.3),
    Claim("docs/how-to/unknown-coefficient.md", r"of the same test is then within (\d+)%, without it within (\d+)%", BARS,
          lambda text: [f"{max(bars[k::2]):.3g}" for bars in [[abs(value(n)) for n in re.findall(r"diffusion: .* best (\S+)% ", text)]]
                        for k in (1, 0)], relative=0.3),
    # sensor kernels; the first row is in double precision
    Claim(SENSORS, r"shared: (\S+) s for all kernels in double precision", KERNELS, r"^float64 +(\S+) s", factor=3),
    Claim(SENSORS, r"rollout of\n(\S+) of the range \((\S+) in single", KERNELS, r"^float64.* (\S+)\nfloat32.* (\S+)$", factor=3),
    Claim(SENSORS, r"A reading takes (\S+) µs where .*? known, (\S+) times less than the rollout, and (\S+) µs \((\S+) times less\)",
          KERNELS, r"^float64 .*? µs \(\S+\) +(\S+) µs \((\S+)\) +(\S+) µs \((\S+)\)", factor=4),
    Claim(SENSORS, r"every\nnode in every step it takes (\S+) µs, (\S+) times less", KERNELS, r"^float64 .*? ms +(\S+) µs \((\S+)\)", factor=3),
    Claim(SENSORS, r"thin tables with an error of (\S+), the\nkernels take (\d+) times less", KERNELS,
          lambda text: re.findall(r"float64 (\S+) times smaller with a relative error of ([^\s,]+)", text)[0][::-1]),
    # the tutorial
    Claim(TUTORIAL, r"^ok    mesh +(.*)$", CHECK, r"^ok    mesh +(.*)$"),
    Claim(TUTORIAL, r"sampling at step times would miss (\S+) of it; .*? moves (\S+) radii", CHECK, r"would miss (\S+) of it; .*? moves (\S+) radii"),
    Claim(TUTORIAL, r"^ok    classical +RNE from offset of rollouts: train (.*); …$", CHECK, r"rollouts: train ([^;]*);"),
    Claim(TUTORIAL, r"^ok    balance +(.*), …$", CHECK, r"^ok    balance +(.*), stored"),
    Claim(TUTORIAL, r"with this step, (\S+) on the test", CHECK, r"; test (\S+) "),
    Claim(TUTORIAL, r"quadratic elements \(P2\), (\S+)\. Where", CHECK, r"test .*lumped\), (\S+) \(P2"),
    Claim(TUTORIAL, r"^  It started from universal weights: .* (\S+) times the", TRAIN, r"before any training, (\S+) times", factor=1.5),
    Claim(TUTORIAL, r"^universal-tuned +(\S+)", TRAIN, r"^universal-tuned +(\S+)", relative=0.3),
    Claim(TUTORIAL, r"^classical_consistent +(\S+)\n^classical_lumped +(\S+)\n^classical_p2 +(\S+)\n^classical_refined +(\S+)\n^universal +(\S+)",
          TRAIN, r"^classical_consistent +(\S+)\n^classical_lumped +(\S+)\n^classical_p2 +(\S+)\n^classical_refined +(\S+)\n^universal +(\S+)"),
    Claim(TUTORIAL, r"alone have about (a sixth) of the error", TRAIN,
          lambda text: [f"{value(b) / value(a):.3g}" for a, b in re.findall(r"consistent +(\S+)\n[\s\S]*^universal +(\S+)", text, re.M)], 0.1),
    Claim(TUTORIAL, r"Quadratic elements have (a seventeenth), without", TRAIN,
          lambda text: [f"{value(b) / value(a):.3g}" for a, b in re.findall(r"consistent +(\S+)\n[\s\S]*^classical_p2 +(\S+)", text, re.M)], 0.1),
    # universal weights
    Claim("README.md", r"they make (\S+) of the better classical solver's error \((\d+) \[flat parts", ANY[""],
          lambda text: [*cells(("model", "universal", "all"))(text), *numbers([text.splitlines()[0].split("on")[1]])]),
    Claim("README.md", r"^  (\S+) \((\d+) \[bodies", ANY["-3d"],
          lambda text: [*cells(("model", "universal", "all"))(text), *numbers([text.splitlines()[0].split(" on ")[1]])]),
    Claim("README.md", r"3d.md\)\) and (\S+) \((\d+) \[steady", ANY["-flow"],
          lambda text: [*cells(("model", "universal", "all"))(text), *numbers([text.splitlines()[0].split(" on ")[1]])]),
    *[Claim(UNIVERSAL, rf"^\| `universal-{name}`.*? \| \d+ \| (.*) \|$", ANY[key], cells(
        *[("model", "universal", column) for column in ("all", "Fo < 0.03", "0.03 to 0.3", "Fo > 0.3", "95%", "worst")],
        ("model", "quadratic", "all"), ("model", "quadratic", "worst"))) for key, name in (("", "2d"), ("-3d", "3d"), ("-flow", "flow-2d"))],
    Claim(UNIVERSAL, r"alone instead of a function, the means are (\S+), \S+ and \S+\.$", ANY[""],
          cells(("model", "universal, source at the nodes alone", "all"))),
    Claim(UNIVERSAL, r"alone instead of a function, the means are \S+, (\S+) and \S+\.$", ANY["-3d"],
          cells(("model", "universal, source at the nodes alone", "all"))),
    Claim(UNIVERSAL, r"alone instead of a function, the means are \S+, \S+ and (\S+)\.$", ANY["-flow"],
          cells(("model", "universal, source at the nodes alone", "all"))),
    *[Claim(UNIVERSAL, rf"^\| {there} \| (.*) \|$", "dgnet bench tune", cells(*[("part", here, column) for column in (
        "universal, no data", "tuned, 1", "tuned, 3", "tuned, 10", "DGNet from zero, 1", "DGNet from zero, 3", "DGNet from zero, 5",
        "DGNet from zero, 10", "quadratic elements")])) for there, here in (
        ("plate of `dgnet new`, convective rim", "plate"), ("disc, held rim", "disc"),
        ("T of two metals with a hole, held foot, convective top", "tee"))],
    Claim(UNIVERSAL, r"nodes, (\S+) times as much in the geometric mean of the nine parts .*\n.* in the time, (\S+) times for the steps", "dgnet bench equal",
          r"geometric mean of the cost is (\S+), of the steps alone (\S+);"),
    Claim(UNIVERSAL, r"for (\S+) times the cost, (\S+) times for the steps alone", "dgnet bench equal --dim 3",
          r"geometric mean of the cost is (\S+), of the steps alone (\S+);"),
    Claim("docs/method.md", r"quadratic elements have an error of (\S+), linear ones (\S+), on the mesh refined\nonce (\S+) \(", DGNET,
          cells(*[("scenario", "laser-heat", column) for column in ("quadratic", "consistent", "refined")])),
    # README: the study
    *[Claim("README.md", rf"^\| {name} \| (.*) \|$", REPORT, report_row(name, name != "laser-heat")) for name in SCENARIOS],
    Claim("README.md", r"a trained DGNet makes (\S+) to (\S+) of the classical error", DGNET,
          lambda text: every(rf"^\| (?:{'|'.join(SCENARIOS)}) \|(?:[^|]*\|){{7}} (\S+) ", (min, max))(text[: text.index("`same-mesh` truth")])),
    Claim("README.md", r"Every learned method had (\d+) s\non an H200 that (\d+) processes", REPORT,
          after("### Scenario by scenario", cells(("allen-cahn", "MGN", "budget"), ("allen-cahn", "MGN", "shared by")))),
    Claim("README.md", r"allen-cahn (\S+), fisher-kpp (\S+), fitzhugh-nagumo (\S+), cylinder (\S+), sediments (\S+), obstacles (\S+),\n",
          CARDS, card(*SCENARIOS[:-1])),
    Claim("README.md", r"laser-heat-3d (\S+) \(linear elements (\S+), ", CARDS,
          card("laser-heat-3d", columns=("DGNet", "classical, consistent"))),
    Claim("README.md", r"quadratic (\S+), universal weights without data (\S+)\), wavy", DGNET, cells(("scenario", "laser-heat-3d", "quadratic"), ("scenario", "laser-heat-3d", "universal"))),
    Claim("README.md", r"wavy-channel (\S+) \(linear elements (\S+), quadratic (\S+)\)", DGNET,
          lambda text: [one for k, one in enumerate(cells(*[("scenario", "wavy-channel", c) for c in ("DGNet", "consistent", "quadratic")])(text)) if k != 1],
          relative=0.02),
    Claim("README.md", r"only on sediments do they beat quadratic elements \((\S+) and", CARDS, card("sediments")),
    Claim("README.md", r"beat quadratic elements \(\S+ and (\S+)\)", DGNET, cells(("scenario", "sediments", "quadratic"))),
    Claim("README.md", r"A rollout runs at (\S+) steps/s", "dgnet bench model --device cuda", r"^\| dgnet \| .* \| (\S+) \| \S+ \| 37 \|$", relative=0.02),
    Claim("README.md", r"quadratic elements take (\S+) to \S+ times as long", "dgnet bench elements", r"elements takes (\S+) times", factor=5),
    Claim("README.md", r"the classical solver makes (\S+) with the linear equation and a trained DGNet (\S+)\.", CARDS,
          card("phase-transition", columns=("classical, consistent", "DGNet"))),
    *[Claim("README.md", rf"^\| {there} \| all \| (.*) \|$", REPORT, same_mesh(here)) for there, here in (
        ("linear, consistent", "classical, consistent"), ("POD–Galerkin", "POD–Galerkin"))],
    Claim("README.md", r"^\| DGNet, three seeds \| all \| (.*) \| nothing learned \|$", REPORT, same_mesh("DGNet, ours", slice(6))),
    Claim("README.md", r"^\| DGNet, three seeds, older code \| .*? \| (.*) \| no reaction \|$", REPORT,
          lambda text: (lambda n: [n[0], n[2], n[4], *n[6:]])(same_mesh("DGNet, ours, reaction unknown", slice(6))(text))),
    Claim("README.md", r"^\| best baseline \| .*? \| (.*) \|$", REPORT, joined(*[after("## Paper size, same-mesh truth", least(
        "RNE", ("DeepONet", "MGN", "MP-PDE", "BENO", "PhyMPGN", "operator inference"), name)) for name in SCENARIOS])),
    Claim("README.md", r"^\| the paper's DGNet, our code .*? \| all \| (.*) \|$", REPORT, after("## Paper size, same-mesh truth", lambda text: [
        "".join(re.findall(r"untrained ([^,)]+)|^([\d.e-]+)", cell(text, "RNE", "DGNet, paper's", name, marks=True))[0]) for name in SCENARIOS])),
    Claim("README.md", r"^\| the paper's DGNet, as published.*? \| all \| (.*) \|$", REPORT, after("## Paper size, same-mesh truth", lambda text: [
        re.findall(r"paper ([^,)]+)", cell(text, "RNE", "DGNet, paper's", name, marks=True))[0] for name in SCENARIOS])),
    Claim("README.md", r"DGNet made (\d+) to (\d+) updates, the networks (\d+) \(PhyMPGN\)", REPORT, lambda _: shown(
        reduce(n for name in SCENARIOS for (n,) in study(name, "converged", "updates", method=method))
        for reduce, method in ((min, "dgnet"), (max, "dgnet"), (min, "phympgn")))),
    Claim("README.md", r"with (\d+), (\d+) and (\d+) updates make (\S+), (\S+) and (\S+)\. Seeds", REPORT, lambda _: shown(
        number for part in zip(*sorted(study("sediments", "converged", "updates", "rne_from_offset"))) for number in part)),
    Claim("README.md", r"were trained for (\d+) to (\d+) s \(\[cards\]", CARDS, lambda text: shown(60 * reduce(
        float(n) for n in card(*SCENARIOS[:-1], "laser-heat-3d", "wavy-channel", columns=("minutes",))(text)) for reduce in (min, max)), relative=0.05),
    Claim("README.md", r"the seeds make (\S+) to (\S+) and (\S+) to (\S+)\)", REPORT, lambda _: shown(reduce(
        n for (n,) in study(name, "same-mesh", "rne")) for name in ("allen-cahn", "sediments") for reduce in (min, max))),
    Claim("README.md", r"learned nothing and the others gained (\d+)%", REPORT, lambda _: shown(
        [100 - 100 * max(sorted(a / b for a, b in study("fisher-kpp", "same-mesh", "rne", "classical"))[:2])])),
    Claim("README.md", r"On obstacles a fifth is (\S+), and one", DGNET, cells(("scenario", "obstacles", "a fifth of it"))),
    Claim("README.md", r"\n  seed makes (\S+)\. On wavy-channel", REPORT, lambda _: shown([max(study("obstacles", "same-mesh", "rne"))[0]])),
    Claim("README.md", r"On wavy-channel DGNet \(older code\) makes (\S+), linear elements (\S+), operator", DGNET, after(
        "`paper` size, `same-mesh` truth", cells(("scenario", "wavy-channel", "DGNet, plain"), ("scenario", "wavy-channel", "consistent")))),
    Claim("README.md", r"operator inference (\S+), the paper's \S+\. The shipped", REPORT, lambda _: shown(study("wavy-channel", "same-mesh", "rne", method="opinf")[0])),
    Claim("README.md", r"operator inference \S+, the paper's (\S+)\. The shipped", DGNET, cells(("scenario", "wavy-channel", "paper, plain"))),
    Claim("README.md", r"had more time and make (\S+) on obstacles", CARDS, lambda text: [cells(("scenario", name, "DGNet"))(
        "\n".join(line for line in text.splitlines() if "| converged |" not in line))[0] for name in ("obstacles",)]),
    Claim("README.md", r"has no seeds and took up to (\d+) s", REPORT, lambda _: shown([max(
        study(name, "same-mesh", "seconds", method="opinf")[0][0] for name in SCENARIOS)])),
    Claim("README.md", r"one seed of PhyMPGN makes (\S+), three (\S+)\. Two", REPORT, lambda _: (lambda n: shown([min(n), sum(n) / len(n)]))(
        [n for (n,) in study("laser-heat", "same-mesh", "rne", method="phympgn")])),
    # listed only
    Claim("README.md", r"A step of laser-heat takes (\S+) µs .*, (\S+) µs with quadratic ones", "dgnet bench elements --device cuda"),
    Claim("README.md", r"costs (\S+) times as much as DGNet on laser-heat, (\S+) times on\n  allen-cahn, (\S+) times on fisher-kpp and (twice) as much .* within \S+ s did", TRADE),
    Claim("README.md", r"the error is (\S+); linear .* make (\S+), on the mesh refined once (\S+) \(", MELTED),
    Claim("docs/limits.md", r"cost (\S+) times as much as DGNet on small laser-heat,\n +(\S+) times on small fitzhugh-nagumo, but (\S+) times on the small cylinder and (\S+) times", "dgnet bench tradeoff RUN"),
    *[Claim(UNIVERSAL, rf"^\| {name} \| (.*) \|$", "dgnet evaluate --pretrained NAME --trajectories 2 --device cuda") for name in ("laser-heat", "laser-heat-3d")],
    *[Claim("docs/how-to/export.md", rf"^\| {name} \| (.*) \|$", "dgnet bench export RUN")
      for name in ("laser-heat", "allen-cahn", "fisher-kpp", "fitzhugh-nagumo", "laser-heat-3d", "light-reaction")],
    Claim("docs/how-to/unknown-material.md", r"^\| classical \| the constants of the solid \| (\S+)", "dgnet train melting --unknown-curves --out run --budget 3"),
    *[Claim("docs/how-to/unknown-reaction.md", rf"^\| {kind} \| {noise} \| (.*) \|$", "tests/training/test_identify.py")
      for kind in ("flow", "still", "inlet") for noise in ("0", "0.1%", "1%")],
    Claim("docs/studio.md", r"nodes with (\d+) to (\d+) frames per\n", "pytest -m slow -s tests/studio/test_browser.py -k speed"),
]


def chosen(words: Sequence[str], quick: bool) -> list[str]:
    """Lines of the commands to run, or to read; named ones are run even where an output is stored."""
    used = [line for line, c in COMMANDS.items() if any(claim.command == line for claim in CLAIMS)]
    if words:
        return [line for line in used if any(word in line for word in words)]
    return [line for line in used if not COMMANDS[line].where and (COMMANDS[line].stored or not quick or COMMANDS[line].seconds < 60)]


def row(claim: Claim, *last: str) -> str:
    line, text, claimed = claim.place()
    return f"{claim.page}:{line} | {text[:60]} | {claim.command} | {' '.join(claimed)} | {' | '.join(last)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("commands", nargs="*", help="only commands that contain one of these texts")
    parser.add_argument("--quick", action="store_true", help="commands of less than a minute, and stored outputs")
    parser.add_argument("--list", action="store_true", help="all claims; nothing runs")
    told = parser.parse_args(arguments)
    print("page:line | claim | command | claimed | " + ("run by" if told.list else "measured | holds"))
    if told.list:
        for claim in CLAIMS:
            c = COMMANDS[claim.command]
            print(row(claim, f"needs {c.where}" if c.where else f"{c.stored} (stored)" if c.stored else f"{c.seconds:.0f} s"))
        return 0
    false = 0
    for line in chosen(told.commands, told.quick):
        c = COMMANDS[line]
        try:
            output = (ROOT / c.stored).read_text() if c.stored else c.output()
        except RuntimeError as e:
            output, failed = "", str(e)
        else:
            failed = ""
        for claim in [one for one in CLAIMS if one.command == line]:
            try:
                measured = claim.measured(output) if not failed else []
            except (LookupError, ValueError) as e:
                measured, why = [], str(e)
            else:
                why = failed
            good = claim.holds(claim.place()[2], measured)
            false += not good
            print(row(claim, " ".join(measured) or why, "yes" if good else "NO"), flush=True)
    print(f"{false} claims do not hold" if false else "all hold")
    return int(false > 0)


if __name__ == "__main__":
    sys.exit(main())
