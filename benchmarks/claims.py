"""Figures of README and docs beside what their commands print.

A claim ties a place in a page to a place in the output of the command that the page names: two regular expressions, whose groups
hold the same numbers in the same order. One run of a command serves all its claims. A command that takes hours or a GPU may have
a stored output, a page that it wrote; then claims are compared with that. Where there is none, `where` says what the command
needs, and the claim is listed only.

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
from statistics import mean

ROOT = Path(__file__).resolve().parents[1]
NUMBER = re.compile(r"(?<![\w.\-−])[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?(?!\w)")
WORDS = {"none": 0.0, "all": 100.0, "a sixth": 1 / 6, "a ninth": 1 / 9, "an eighteenth": 1 / 18, "twice": 2.0}
PAPER = "docs/results/paper.md"
SCENARIOS = ("allen-cahn", "fisher-kpp", "fitzhugh-nagumo", "cylinder", "sediments", "obstacles", "laser-heat")
Found = str | Callable[[str], Sequence[str]]


@dataclass(frozen=True)
class Command:
    """A command as pages name it.

    `script` is what runs in an empty folder where the line alone would not do; `seconds` of one quiet core; `stored` is the page
    that the command wrote, which is read where there is no script or no time; `where` is what it needs beyond one core.
    """

    line: str
    seconds: float = 30
    script: str = ""
    stored: str = ""
    where: str = ""

    @property
    def quick(self) -> bool:
        return self.seconds < 60

    def output(self, quick: bool) -> str:
        if self.stored and (not self.script or (quick and not self.quick)):
            return (ROOT / self.stored).read_text()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "paper", ROOT))), "ROOT": str(ROOT),
                                    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
        line = re.sub(r"(?<=[\s=])(examples|tests|docs)/", rf"{ROOT}/\1/", _runnable(self.line))
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["bash", "-c", "set -eo pipefail\n" + (self.script or line)], cwd=folder, env=environment,
                                  capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout


def _runnable(line: str) -> str:
    """The line with Python before its program, so that it runs wherever the script stands."""
    return re.sub(r"^(dgnet-paper|dgnet|pytest)(?=\s)", lambda m: f"python -m {m[1].replace('-', '_')}", line)


@dataclass(frozen=True)
class Claim:
    """`claimed` matches once in `page` of `command`; the numbers in its groups are those that `found` has in the output.

    `found` is a regular expression that matches the output, or a function of the output; empty where nothing can be run here.
    In both, @ is a group of anything but blanks.
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
        matches = list(re.finditer(pattern(self.claimed), text, re.M))
        if len(matches) != 1:
            raise LookupError(f"{self.page}: {len(matches)} places match {self.claimed!r}")
        (match,) = matches
        return text.count("\n", 0, match.start()) + 1, " ".join(match.group().split()), numbers(match.groups())

    def span(self) -> tuple[int, int]:
        (match,) = re.finditer(pattern(self.claimed), (ROOT / self.page).read_text(), re.M)
        return match.span()

    def measured(self, output: str) -> list[str]:
        if callable(self.found):
            return list(self.found(output))
        match = re.search(pattern(self.found), output, re.M)
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


def pattern(text: str) -> str:
    """A regular expression, @ spelled out."""
    return text.replace("@", r"(\S+)")


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
        if (one["kind"], one["scenario"], one["size"], one["truth"], one["method"], one["trajectories"],
              one["unknown_reaction"]) == (
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


def before(heading: str, found: Callable[[str], Sequence[str]]) -> Callable[[str], Sequence[str]]:
    return lambda text: found(text[: text.index(heading)])


def least(head: str, rows: Sequence[str], column: str) -> Callable[[str], Sequence[str]]:
    """The smallest of some rows of a column, with its spread."""
    def found(text: str) -> Sequence[str]:
        shown = [numbers([cell(text, head, row, column)]) for row in rows if "not" not in cell(text, head, row, column)]
        return min((one for one in shown if one), key=lambda one: value(one[0]))
    return found


def joined(*parts: Callable[[str], Sequence[str]]) -> Callable[[str], Sequence[str]]:
    return lambda text: [number for part in parts for number in part(text)]


def every(one_group: str, reduce: Sequence[Callable[[list[float]], float]]) -> Callable[[str], Sequence[str]]:
    """Each of `reduce` applied to all numbers that a pattern with one group finds."""
    return lambda text: [f"{one([value(n) for n in re.findall(pattern(one_group), text, re.M)]):.6g}" for one in reduce]


def ratio(above: str, below: str) -> Callable[[str], Sequence[str]]:
    """The first numbers that two patterns find, one over the other."""
    def found(text: str) -> Sequence[str]:
        a, b = (value(re.findall(pattern(one), text, re.M)[0]) for one in (above, below))
        return shown([a / b])
    return found


LISTING = "python - <<'END'\nimport os, re\nfrom pathlib import Path\ntext = (Path(os.environ['ROOT']) / '{page}').read_text()\n" \
    "Path('{name}').write_text('\\n'.join(re.findall(r'^```{language}\\n(.*?)^```', text, re.S | re.M)))\nEND\n"
REPORT = "dgnet-paper report docs/results/study"
COMMANDS = {c.line: c for c in (
    Command("python examples/heat_without_burning.py", 10),
    Command("python examples/without_finite_differences.py", 10),
    Command("python examples/gray_scott.py", 8),
    Command("python examples/unknown_material.py curves.png", 11),
    Command("python examples/new_source_3d.py", 15),
    Command("python examples/follow_a_plate.py 20", 25),
    Command("python examples/what_heats_the_plate.py 50", 320),
    Command("python examples/where_was_the_laser.py 50", 90),
    Command("python examples/coefficients_from_sensors.py 24", 40),
    Command("python examples/coefficients_from_sensors.py 15 latent", 75),
    Command("python -m benchmarks kernels", 25),
    Command("python -m benchmarks elements", 10),
    Command("python -m benchmarks step", 300),
    Command("python -m benchmarks rollout", 15),
    Command("dgnet check plate", 8, "dgnet new plate\ndgnet check plate"),
    Command("dgnet train plate --out run --budget 0.2", 50,
            "dgnet new plate\ndgnet train plate --out run --budget 0.2\ndgnet evaluate run --json scores.json\n"
            "printf 't,x,y,radius,power\\n0,0.05,0.04,0.014,100\\n5,0.05,0.04,0.014,100\\n15,0.28,0.04,0.014,100\\n' > mine.csv\n"
            "dgnet rollout run --source mine.csv\n"
            "python - <<'END'\nimport json\nfor name, score in json.load(open('scores.json'))['scores'].items():\n"
            "    print(name, format(score['rne_from_offset'], '.4f'))\nEND"),
    Command("cc -std=c99 -O2 main.c plate.c -lm -o main && ./main", 12,
            LISTING.format(page="docs/how-to/export.md", name="main.c", language="c")
            + "dgnet new plate\ndgnet export plate --out plate.c\ncc -std=c99 -O2 main.c plate.c -lm -o main\n./main"),
    Command("pytest -s tests/discovery/test_bars.py", 10),
    Command("python examples/unknown_diffusivity.py", 5),
    Command("dgnet design plate goal.toml --out designed", 6,
            LISTING.format(page="docs/how-to/design.md", name="make.py", language="python")
            + LISTING.format(page="docs/how-to/design.md", name="goal.toml", language="toml")
            + "python make.py\nsed -i s/296.0/299.0/ goal.toml\ndgnet design plate goal.toml --out designed"),
    Command("fmpy simulate out/plate.fmu", 10,
            "dgnet new plate\ndgnet export plate --out plate.fmu --fmi 3 --probe 0.1,0.04 --spots 2\n"
            "fmpy simulate plate.fmu --stop-time 5 --output-interval 0.25 --output-file probes.csv "
            "--start-values spot1_power 100 spot1_radius 0.014 spot1_x 0.05 spot1_y 0.04\ntail -1 probes.csv"),
    # the page that the command wrote is read where it takes a GPU, or longer than there is time
    Command(REPORT, 105, "dgnet-paper report $ROOT/docs/results/study --out page.html --markdown page.md\ncat page.md", stored=PAPER),
    Command("dgnet-paper report docs/results/study --dgnet docs/results/dgnet.md", 105,
            "dgnet-paper report $ROOT/docs/results/study --out page.html --dgnet page.md\ncat page.md", stored="docs/results/dgnet.md"),
    Command("dgnet-paper pretrained --markdown docs/results/pretrained.md", 5, "dgnet-paper pretrained --markdown cards.md\ncat cards.md",
            stored="docs/results/pretrained.md"),
    Command("python -m benchmarks choose", 1800, stored="docs/results/choose.md"),
    Command("python -m benchmarks any-mesh", 600, stored="docs/results/any-mesh.md"),
    Command("python -m benchmarks any-mesh --dim 3", 600, stored="docs/results/any-mesh-3d.md"),
    Command("python -m benchmarks any-mesh --flow", 600, stored="docs/results/any-mesh-flow.md"),
    Command("python -m benchmarks tune", 600, stored="docs/results/tune.md"),
    Command("python -m benchmarks equal", 600, stored="docs/results/equal.md"),
    Command("python -m benchmarks equal --dim 3", 600, stored="docs/results/equal-3d.md"),
    Command("python -m benchmarks model --device cuda", 600, stored="docs/results/model.md"),
    # listed only
    Command("python -m benchmarks elements --device cuda", 60, where="an H200"),
    Command("python -m benchmarks rollout --device cuda", 60, where="an H200"),
    Command("python -m benchmarks tradeoff", 900, where="an H200; 15 s of search for each of five scenarios"),
    Command("python -m benchmarks tradeoff RUN", 900, where="four runs, one to two minutes of training each"),
    Command("dgnet-paper train melting --size paper --unknown-curves --trajectories 4", 900, where="an H200"),
    Command("dgnet-paper evaluate NAME --trajectories 2 --device cuda", 900, where="an H200"),
    Command("dgnet rollout run --trajectory 10 --dt 0.125", 360, where="a training of five minutes"),
    Command("--mesh FILE", 360, where="a training of five minutes"),
    Command("python -m benchmarks export RUN", 900, where="data and weights of six scenarios of paper size, an hour"),
    Command("dgnet-paper train melting --unknown-curves --out run --budget 3", 240, where="three trainings of three minutes"),
    Command("tests/discovery/test_identify.py", 7200, where="135 identifications by `judged`, two hours"),
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
LASERS, TRACK, FOLLOWED = (f"python examples/{name}" for name in ("what_heats_the_plate.py 50", "where_was_the_laser.py 50",
      "follow_a_plate.py 20"))
FACTORS, LATENT = "python examples/coefficients_from_sensors.py 24", "python examples/coefficients_from_sensors.py 15 latent"
BURNING, MATERIAL = "python examples/heat_without_burning.py", "python examples/unknown_material.py curves.png"
ELSEWHERE = "cc -std=c99 -O2 main.c plate.c -lm -o main && ./main"
KERNELS, CARDS = "python -m benchmarks kernels", "dgnet-paper pretrained --markdown docs/results/pretrained.md"
DGNET = "dgnet-paper report docs/results/study --dgnet docs/results/dgnet.md"
CHECK, TRAIN, BARS = "dgnet check plate", "dgnet train plate --out run --budget 0.2", "pytest -s tests/discovery/test_bars.py"
MELTED, TRADE = "dgnet-paper train melting --size paper --unknown-curves --trajectories 4", "python -m benchmarks tradeoff"
ANY = {"": "python -m benchmarks any-mesh", "-3d": "python -m benchmarks any-mesh --dim 3", "-flow": "python -m benchmarks any-mesh --flow"}
FOUR = ("pulsed", "ring", "line", "step")
TWO = r" \(\d+\): rms error @ \(median\), @ \(largest\); @ inside"
THREE = r" \(\d+\): rms error @, @ \(median\), @ \(largest\); @ inside"


def title(text: str) -> list[str]:
    """The numbers in the title of a page after the word 'on'."""
    return numbers([text.splitlines()[0].split(" on ")[1]])


unseen = joined(cells(("model", "universal-quadratic", "all")), title)


def in_brackets(pattern: str) -> Callable[[str], Sequence[str]]:
    """What stands beside the paper's DGNet in the main table against same-mesh truth."""
    def found(text: str) -> Sequence[str]:
        marked = [cell(text, "RNE", "DGNet, paper's", name, marks=True) for name in SCENARIOS]
        return ["".join(match.groups("")) for one in marked for match in [re.search(pattern, one)] if match]
    return after("## Paper size, same-mesh truth", found)


def card(*names: str, columns: Sequence[str] = ("DGNet",), truth: str = "converged") -> Callable[[str], Sequence[str]]:
    """Numbers of the cards of shipped weights."""
    def found(text: str) -> Sequence[str]:
        rows = "\n".join(line for line in text.splitlines() if f"| {truth} |" in line or "| scenario |" in line or "|---" in line)
        return cells(*[("scenario", name, column) for name in names for column in columns])(rows)
    return found


def other_sources(text: str) -> list[str]:
    """Smallest and largest error of quadratic universal weights under sources of kinds that no training held."""
    part = text[text.index("Sources of kinds"):]
    found = [value(n) for kind in (*FOUR, "waves") for n in cells(("model", "universal-quadratic", kind))(part)]
    return shown([min(found), max(found)])


CLAIMS = [
    # examples
    Claim(SENSORS, r"^\| 25 that swing smoothly \| (.*) \|$", LASERS, "swinging" + TWO),
    Claim(SENSORS, r"^\| 25 that are switched on and off .*? \| (.*) \|$", LASERS, "switched" + TWO),
    Claim(SENSORS, r"random places of the same 100 leave (\d+) times", LASERS, r"chosen ones: @"),
    Claim(SENSORS, r"^\| the path .*? \| @ mesh spacings \| @ \| @ \|$", TRACK,
          r"path \(\d+\): @ mesh.*?, @ \(largest\); @ inside"),
    Claim(SENSORS, r"^\| the laser's power .*? \| @ \| @ \| @ \|$", TRACK,
          r"power \(\d+\): @ rms.*?, @ \(largest\); @ inside"),
    Claim(SENSORS, r"^\| the start, where .*?\(rms\) \| @ of its range \| @ \| @ ", TRACK,
          r"start \(\d+\): @ of its.*?, @ \(largest\).*?; @ of all"),
    Claim(SENSORS, r"seen so well at @ of the nodes", TRACK, r"that is at @ of the nodes"),
    Claim(SENSORS, r"steps, @ unknown numbers: @ rollouts against some @ ", "python examples/without_finite_differences.py",
          r"(\d+) unknown numbers: (\d+) rollouts by kernels, (\d+) by", relative=0.25),
    Claim(SENSORS, r"the answers equal to @ standard deviations", "python examples/without_finite_differences.py",
          r"differ by at most @", factor=5),
    *[Claim(SENSORS, rf"^\| {there} \| (.*) \|(?=\n(?:\|.*\n)*\nOn the given)", FACTORS, here + THREE)
      for there, here in (("diffusion in the east", "diffusion in east"), ("diffusion in the west", "diffusion in west"),
                          ("convection", "convection"))],
    *[Claim(SENSORS, rf"^\| {there} \| (.*) \|(?=\n(?:\|.*\n)*\nFifteen)", LATENT, here + THREE)
      for there, here in (("latent heat", "latent"), ("convection", "convection"), ("diffusion in the east", "diffusion in east"),
                          ("diffusion in the west", "diffusion in west"))],
    Claim(FOLLOW, r"inside the bands of 90% \| @ \|", FOLLOWED, r"@ of the field inside"),
    Claim(FOLLOW, r"rms error of the field, of its range \| @ \|", FOLLOWED, r"rms error @ of its"),
    Claim(FOLLOW, r"chi-square per reading .*? \| @ \|", FOLLOWED, r"chi-square per reading @"),
    Claim(FOLLOW, r"alarm after a lamp was switched on .*? \| (all) \|", FOLLOWED, r"lamp was switched on: @ of plates"),
    Claim(FOLLOW, r"alarm within 30 rows .*? \| (none) \|", FOLLOWED, r"in 30 rows: @"),
    Claim("docs/limits.md", r"@ of the truth was\n +inside the bands of 90% on 20 plates", FOLLOWED, r"@ of the field inside"),
    Claim(DESIGN, r"nothing above 346 K \| (.*?) \| [^|]* \| @ \| @ K", BURNING,
          r"three lasers: (\d+) rollouts, .*? missed by @ and the hottest node is at @ K"),
    Claim(DESIGN, r"nothing above 320 K \| (.*?) \| [^|]* \| @ \| @ K", BURNING,
          r"a path: (\d+) rollouts, .*? missed by @ and the hottest node is at @ K", relative=0.3),
    Claim(DESIGN, r"nothing above 346 K \| \d+ \| @ s", BURNING, r"three lasers: \d+ rollouts, @ s", factor=4),
    Claim(DESIGN, r"nothing above 320 K \| \S+ \| @ s", BURNING, r"a path: \d+ rollouts, @ s", factor=4),
    Claim("docs/how-to/unknown-material.md", r"^capacity: (.*)\n^diffusion: (.*)\n^error of new heatings: (.*)\n^latent heat (.*)$",
          MATERIAL, r"^capacity: (.*)\n^diffusion: (.*)\n^error of new heatings: (.*)\n^latent heat (.*)$", relative=0.02),
    Claim("docs/how-to/unknown-reaction.md", r"^r_u = (.*)\n^r_v = (.*)\n^error of new trajectories: (.*)$",
          "python examples/gray_scott.py", r"^r_u = (.*)\n^r_v = (.*)\n^error of new trajectories: (.*)$", relative=0.02),
    Claim("docs/how-to/moving-source.md", r"the error there is (a ninth) of the classical", "python examples/new_source_3d.py",
          ratio(r"coil.*dgnet: @ ", r"coil.*consistent: @ "), relative=0.25),
    Claim("docs/how-to/export.md", r"It prints `5 s: at most @ K`", "cc -std=c99 -O2 main.c plate.c -lm -o main && ./main",
          r"5 s: at most @ K"),
    Claim("docs/how-to/unknown-coefficient.md",
          r"diffusivities that are fitted (\d+) to (\d+)% off with standard errors of @ to @%",
          BARS, joined(every(r"diffusion: fitted [-+]@%", (min, max)), every(r"diffusion: .*noise @%", (min, max))), relative=0.3),
    Claim("docs/how-to/unknown-coefficient.md", r"of the same test is then within (\d+)%, without it within (\d+)%", BARS,
          every(r"diffusion: .* best [-+]@% ", (lambda bars: max(bars[1::2]), lambda bars: max(bars[::2]))), relative=0.3),
    # sensor kernels; the first row is in double precision
    Claim(SENSORS, r"shared: @ to \d+ s for all kernels in double precision", KERNELS, r"^float64 +@ s", factor=4),
    Claim(SENSORS, r"rollout of\n@ of the range \(@ in single", KERNELS, r"^float64.* @\nfloat32.* @$", factor=3),
    Claim(SENSORS, r"A reading takes @ µs where .*? known, some @ times less than the rollout, and @ µs \(@ times less\)",
          KERNELS, r"^float64 .*? µs \(\S+\) +@ µs \(@\) +@ µs \(@\)", factor=4),
    Claim(SENSORS, r"every\nnode in every step it takes about @ µs, @ times less",
          KERNELS, r"^float64 .*? ms +@ µs \(@\)", factor=3),
    # the tutorial
    Claim(TUTORIAL, r"^ok    mesh +(.*)$", CHECK, r"^ok    mesh +(.*)$"),
    Claim(TUTORIAL, r"sampling at step times would miss @ of it; .*? moves @ radii", CHECK,
          r"would miss @ of it; .*? moves @ radii"),
    Claim(TUTORIAL, r"^ok    classical +RNE from offset of rollouts: train (.*); …$", CHECK, r"rollouts: train ([^;]*);"),
    Claim(TUTORIAL, r"^ok    balance +(.*), …$", CHECK, r"^ok    balance +(.*), stored"),
    Claim(TUTORIAL, r"with this step, @ on the test", CHECK, r"; test @ "),
    Claim(TUTORIAL, r"quadratic elements \(P2\), @\. Where", CHECK, r"test .*lumped\), @ \(P2"),
    Claim(TUTORIAL, r"^  It started from universal weights: .* @ times the", TRAIN, r"before any training, @ times", factor=1.5),
    Claim(TUTORIAL, r"^universal-tuned +@", TRAIN, r"^universal-tuned +@", relative=0.3),
    Claim(TUTORIAL, r"^classical_consistent +@\n^classical_lumped +@\n^classical_p2 +@\n^classical_refined +@\n^universal +@",
          TRAIN, r"^classical_consistent +@\n^classical_lumped +@\n^classical_p2 +@\n^classical_refined +@\n^universal +@"),
    Claim(TUTORIAL, r"alone have about (a sixth) of the error", TRAIN,
          ratio(r"^universal +@$", r"^classical_consistent +@"), relative=0.1),
    Claim(TUTORIAL, r"Quadratic elements have (an eighteenth), without", TRAIN,
          ratio(r"^classical_p2 +@", r"^classical_consistent +@"), relative=0.1),
    # universal weights
    Claim("README.md", r"no training has seen, @ of the error of the best classical setting on the same mesh and step\n  \((\d+) \[flat", ANY[""], unseen),
    Claim("README.md", r"any-mesh.md\)\), @ \((\d+) \[bodies", ANY["-3d"], unseen),
    Claim("README.md", r"3d.md\)\) and @ \((\d+) \[steady", ANY["-flow"], unseen),
    *[Claim(UNIVERSAL, rf"^\| `{kind}-{name}`.*? \| \d+ \| (.*) \|$", ANY[key], cells(*[("model", model, column) for column in (
        "all", "Fo < 0.03", "0.03 to 0.3", "Fo > 0.3", "95%", "worst", "below 0.9")]))
      for key, name in (("", "2d"), ("-3d", "3d"), ("-flow", "flow-2d"))
      for kind, model in (("elements2", "universal-quadratic"), ("universal", "universal"))],
    *[Claim(UNIVERSAL, rf"instead of as functions, the means are {means},", ANY[key],
            cells(("model", "universal-quadratic, source at the nodes alone", "all")))
      for key, means in (("", r"@, \S+ and [\d.]+"), ("-3d", r"\S+ @ and [\d.]+"), ("-flow", r"\S+ \S+ and @"))],
    *[Claim(UNIVERSAL, rf"^\| {there} \| (.*) \|$", "python -m benchmarks tune", cells(*[("part", here, column) for column in (
        "universal, no data", "tuned, 1", "tuned, 3", "tuned, 10", "DGNet from zero, 1", "DGNet from zero, 3", "DGNet from zero, 5",
        "DGNet from zero, 10", "quadratic elements")])) for there, here in (
        ("plate of `dgnet new`, convective rim", "plate"), ("disc, held rim", "disc"),
        ("T of two metals with a hole, held foot, convective top", "tee"))],
    Claim(UNIVERSAL, r"nodes, @ times as much in the geometric mean of the nine parts .*\n.* in the time, @ times for the steps",
          "python -m benchmarks equal",
          r"geometric mean of the cost is @, of the steps alone @;"),
    Claim(UNIVERSAL, r"for @ times the cost, @ times for the steps alone", "python -m benchmarks equal --dim 3",
          r"geometric mean of the cost is @, of the steps alone @;"),
    Claim("docs/method.md", r"quadratic elements have an error of @, linear ones @, on the mesh refined\nonce @ \(", DGNET,
          cells(*[("scenario", "laser-heat", column) for column in ("quadratic", "consistent", "refined")])),
    Claim(UNIVERSAL, r"^@ to \S+ times at 484 nodes, @ to \S+ times at 10,201 and @ times at 100,489", "python -m benchmarks step",
          every(r"nodes: SciPy.*universal @ of the", (lambda found: found[0], lambda found: found[1], lambda found: found[2])),
                factor=1.6),
    # README: the study
    *[Claim("README.md", rf"^\| {name} \| (.*) \|$", REPORT, report_row(name, name != "laser-heat")) for name in SCENARIOS],
    Claim("README.md", r"a trained DGNet makes @ to @ of the classical error", DGNET,
          before("`same-mesh` truth", every(rf"^\| (?:{'|'.join(SCENARIOS)}) \|(?:[^|]*\|){{7}} @ ", (min, max)))),
    Claim("README.md", r"Every learned method had (\d+) s\non an H200 that (\d+) processes", REPORT,
          after("### Scenario by scenario", cells(("allen-cahn", "MGN", "budget"), ("allen-cahn", "MGN", "shared by")))),
    Claim("README.md", r"allen-cahn @, fisher-kpp @, fitzhugh-nagumo @, cylinder @, sediments @, obstacles @,\n",
          CARDS, card(*SCENARIOS[:-1])),
    Claim("README.md", r"laser-heat-3d @ \(linear elements @, ", CARDS,
          card("laser-heat-3d", columns=("DGNet", "classical, consistent"))),
    Claim("README.md", r"quadratic @, universal weights without data @\), wavy", DGNET,
          cells(("scenario", "laser-heat-3d", "quadratic"), ("scenario", "laser-heat-3d", "universal"))),
    Claim("README.md", r"wavy-channel @ \(linear elements @, quadratic @\)", DGNET,
          joined(lambda text: cells(("scenario", "wavy-channel", "DGNet"))(text)[:1], cells(
              ("scenario", "wavy-channel", "consistent"), ("scenario", "wavy-channel", "quadratic"))), relative=0.02),
    Claim("README.md", r"only on sediments do they beat quadratic elements \(@ and", CARDS, card("sediments")),
    Claim("README.md", r"beat quadratic elements \(\S+ and @\)", DGNET, cells(("scenario", "sediments", "quadratic"))),
    Claim("README.md", r"A rollout runs at @ steps/s", "python -m benchmarks model --device cuda", r"^\| dgnet \| .* \| @ \| \S+ \| 37 \|$",
          relative=0.02),
    Claim("README.md", r"quadratic elements take @ times as long as linear ones, and @ times as long",
          "python -m benchmarks elements", r"elements takes @ times .* and @ times that at equal nodes", factor=1.5),
    Claim("README.md", r"the classical solver makes @ with the linear equation and a trained DGNet @\.", CARDS,
          card("phase-transition", columns=("classical, consistent", "DGNet"))),
    *[Claim("README.md", rf"^\| {there} \| all \| (.*) \|$", REPORT, same_mesh(here)) for there, here in (
        ("linear, consistent", "classical, consistent"), ("POD–Galerkin", "POD–Galerkin"))],
    Claim("README.md", r"^\| DGNet, three seeds \| all \| (.*) \| nothing learned \|$", REPORT, same_mesh("DGNet, ours", slice(6))),
    Claim("README.md", r"^\| DGNet, three seeds, older code \| .*? \| (.*) \| no reaction \|$", REPORT,
          lambda text: (lambda n: [n[0], n[2], n[4], *n[6:]])(same_mesh("DGNet, ours, reaction unknown", slice(6))(text))),
    Claim("README.md", r"^\| best baseline \| .*? \| (.*) \|$", REPORT, joined(*[after("## Paper size, same-mesh truth", least(
        "RNE", ("DeepONet", "MGN", "MP-PDE", "BENO", "PhyMPGN", "operator inference"), name)) for name in SCENARIOS])),
    Claim("README.md", r"^\| the paper's DGNet, our code .*? \| all \| (.*) \|$", REPORT,
          in_brackets(r"untrained ([^,)]+)|^([\d.e-]+)")),
    Claim("README.md", r"^\| the paper's DGNet, as published.*? \| all \| (.*) \|$", REPORT,
          in_brackets(r"paper ([^,)]+)")),
    Claim("README.md", r"DGNet made (\d+) to (\d+) updates, the networks (\d+) \(PhyMPGN\)", REPORT, lambda _: shown(
        reduce(n for name in SCENARIOS for (n,) in study(name, "converged", "updates", method=method))
        for reduce, method in ((min, "dgnet"), (max, "dgnet"), (min, "phympgn")))),
    Claim("README.md", r"with (\d+), (\d+) and (\d+) updates make @, @ and @\. Seeds", REPORT, lambda _: shown(
        number for part in zip(*sorted(study("sediments", "converged", "updates", "rne_from_offset"))) for number in part)),
    Claim("README.md", r"were trained for (\d+) to (\d+) s \(\[cards\]", CARDS, lambda text: shown(60 * reduce(
        float(n) for n in card(*SCENARIOS[:-1], "laser-heat-3d", "wavy-channel", columns=("minutes",))(text))
        for reduce in (min, max)), relative=0.05),
    Claim("README.md", r"the seeds make @ to @ and @ to @\)", REPORT, lambda _: shown(reduce(
        n for (n,) in study(name, "same-mesh", "rne")) for name in ("allen-cahn", "sediments") for reduce in (min, max))),
    Claim("README.md", r"learned nothing and the others gained (\d+)%", REPORT, lambda _: shown(
        [100 - 100 * max(sorted(a / b for a, b in study("fisher-kpp", "same-mesh", "rne", "classical"))[:2])])),
    Claim("README.md", r"On obstacles a fifth is @, and one", DGNET, cells(("scenario", "obstacles", "a fifth of it"))),
    Claim("README.md", r"\n  seed makes @\. On wavy-channel", REPORT,
          lambda _: shown([max(study("obstacles", "same-mesh", "rne"))[0]])),
    Claim("README.md", r"On wavy-channel DGNet \(older code\) makes @, linear elements @, operator", DGNET, after(
        "`paper` size, `same-mesh` truth", cells(
            ("scenario", "wavy-channel", "DGNet, plain"), ("scenario", "wavy-channel", "consistent")))),
    Claim("README.md", r"operator inference @, the paper's \S+\. The shipped", REPORT,
          lambda _: shown(study("wavy-channel", "same-mesh", "rne", method="opinf")[0])),
    Claim("README.md", r"operator inference \S+, the paper's @\. The shipped", DGNET,
          cells(("scenario", "wavy-channel", "paper, plain"))),
    Claim("README.md", r"had more time and make @ on obstacles", CARDS, card("obstacles", truth="same-mesh")),
    Claim("README.md", r"had more time and make @ on obstacles and on the cylinder", CARDS, card("cylinder", truth="same-mesh"),
          relative=0.02),
    Claim("README.md", r"has no seeds and took up to (\d+) s", REPORT, lambda _: shown([max(
        study(name, "same-mesh", "seconds", method="opinf")[0][0] for name in SCENARIOS)])),
    Claim("README.md", r"one seed of PhyMPGN makes @, three @\. Two", REPORT, lambda _: shown(reduce(
        n for (n,) in study("laser-heat", "same-mesh", "rne", method="phympgn")) for reduce in (min, mean))),
    Claim("docs/how-to/materials.md", r"^T: entered @ K·m2 \(source @\), left @ K·m2 \(exchange @\), stored @ K", CHECK,
          r"T: entered @ K·m2 \(source @\), left @ K·m2 \(exchange @\), stored @ K"),
    Claim(UNIVERSAL, r"that no training held give @ to @ on flat parts", ANY[""], other_sources),
    *[Claim(UNIVERSAL, rf"^\| {asked} \| (\d+% \| .*) \|$", "python -m benchmarks choose", cells(*[("asked", asked, column) for column in (
        "said to be reached", "and is", "estimate over true error between 0.5 and 2", "from (5%) to (95%)", "true error below the upper estimate",
        "seconds of the chosen", "of all tried", "of the finest")])) for asked in ("1%", "0.3%", "0.1%", "all")],
    *[Claim(LIGHTS, rf"^\| {there} \| (.*) \| \[any-mesh", ANY[key], joined(title, cells(*[
        ("model", model, column) for model in ("universal-quadratic", "universal", "quadratic") for column in ("all", "worst")])))
      for there, key in (("flat parts", ""), ("bodies", "-3d"), ("steady flows", "-flow"))],
    Claim(LIGHTS, r"^core: (.*) of the classical error against (.*)\. Quadratic elements make (.*) without", "python -m benchmarks tune",
          cells(*[("part", part, column) for column in ("tuned, 1", "DGNet from zero, 5", "quadratic elements")
                  for part in ("plate", "disc", "tee")])),
    Claim(LIGHTS, r"allen-cahn @, fisher-kpp @, fitzhugh-nagumo @, cylinder @, sediments @, obstacles\n@, wavy-channel @ ",
          CARDS, card(*SCENARIOS[:-1], "wavy-channel")),
    Claim(LIGHTS, r"A rollout runs at @ steps/s", "python -m benchmarks model --device cuda", r"^\| dgnet \| .* \| @ \| \S+ \| 37 \|$",
          relative=0.02),
    Claim(TUTORIAL, r"T from @ to @ K$", TRAIN, r"T from @ to (4[67]\S+) K$", relative=0.01),
    Claim(TUTORIAL, r"T goes up to @ K .*, training had @ to @ K, @ of that", TRAIN,
          r"T goes up to @ K .*, training had @ to @ K, @ of that",
          relative=0.02),
    Claim(TUTORIAL, r"^plate \(plate\): validation error @ after", TRAIN, r"^plate \(plate\): validation error @ after",
          factor=1.5),
    Claim(DESIGN, r"t = 5, 299 is wanted, and the limits allow at most @ \(the limit of @ is reached at \(@, @\), t = @; …",
          "dgnet design plate goal.toml --out designed",
          r"the limits allow at most @ \(the limit of @ is reached at \(@, @\), t = @;"),
    Claim("docs/how-to/export.md", r"The last row of `probes.csv` has @ K as the highest", "fmpy simulate out/plate.fmu",
          r"^5\.0,.*,@$"),
    Claim("docs/how-to/unknown-coefficient.md", r"finds the same as without, to @\.$", "python examples/unknown_diffusivity.py",
          lambda text: [f"{100 * abs(a / b - 1):.1g}" for a, b in [[value(n) for n in re.findall(r"step (\S+) ±", text)]]],
          factor=5),
    Claim("docs/how-to/unknown-coefficient.md", r"the same example: @\)", "python examples/unknown_diffusivity.py",
          every(r"0%.*fitted @ ", (lambda found: 100 * abs(found[0] / 0.05 - 1),))),
    Claim("docs/how-to/materials.md", r"^@ to \S+ times a linear one", "python -m benchmarks rollout",
          ratio(r"^classical \(consistent\) +lu +1 +\S+ +\S+ +@", r"^classical, steel +newton +1 +\S+ +\S+ +@"), factor=1.6),
    # listed only
    Claim("docs/problem-files.md",
          r"same error as the training step \(@\),\n`--dt 0.5` has @ and `--dt 1` has @; the classical solver has @ with "
          r"the first three and @ with", "dgnet rollout run --trajectory 10 --dt 0.125"),
    Claim("docs/problem-files.md", r"it has @\nat the old nodes, and the classical solver there @\.$", "--mesh FILE"),
    Claim("docs/how-to/materials.md", r"phase takes @ steps/s \(linear @\), with a\nsharp melting point @ \(",
          "python -m benchmarks rollout --device cuda"),
    Claim("README.md", r"A step of laser-heat takes @ µs .*, @ µs with quadratic ones", "python -m benchmarks elements --device cuda"),
    Claim("README.md", r"costs @ times as much as DGNet on laser-heat, @ times on\n  allen-cahn, @ times on fisher-kpp and "
          r"(twice) as much .* within \S+ s did", TRADE),
    Claim("README.md", r"the error is @; linear .* make @, on the mesh refined once @ \(", MELTED),
    Claim("docs/limits.md",
          r"cost @ times as much as DGNet on small laser-heat,\n +@ times on small fitzhugh-nagumo, "
          r"but @ times on the small cylinder and @ times", "python -m benchmarks tradeoff RUN"),
    *[Claim(UNIVERSAL, rf"^\| {name} \| (.*) \|$", "dgnet-paper evaluate NAME --trajectories 2 --device cuda")
          for name in ("laser-heat", "laser-heat-3d")],
    *[Claim("docs/how-to/export.md", rf"^\| {name} \| (.*) \|$", "python -m benchmarks export RUN")
      for name in ("laser-heat", "allen-cahn", "fisher-kpp", "fitzhugh-nagumo", "laser-heat-3d", "light-reaction")],
    *[Claim("docs/how-to/unknown-material.md", rf"^\| {row} \| (.*?) \| [^|]* \|$",
            "dgnet-paper train melting --unknown-curves --out run --budget 3")
      for row in (r"classical \| the constants of the solid", r"classical, lumped or consistent mass \| both curves",
      r"DGNet \| both curves",
                  "DGNet \\| nothing of the curves, four training trajectories")],
    Claim("docs/how-to/unknown-reaction.md", r"beyond 10% at 1% noise. RNE with noise is at most @ times",
          "tests/discovery/test_identify.py"),
    *[Claim("docs/how-to/unknown-reaction.md", rf"^\| {kind} \| {noise} \| (.*) \|$", "tests/discovery/test_identify.py")
      for kind in ("flow", "still", "inlet") for noise in ("0", "0.1%", "1%")],
    Claim("docs/studio.md",
          r"nodes with (\d+) to (\d+) frames per\n.* it took (\d+) to (\d+) ms .* (\d+) to (\d+) ms"
          r"[\s\S]*had (\d+) to (\d+) frames",
          "pytest -m slow -s tests/studio/test_browser.py -k speed"),
]


def chosen(words: Sequence[str], quick: bool) -> list[str]:
    """Lines of the commands to run, or whose stored output is read."""
    used = [line for line, c in COMMANDS.items() if not c.where and any(claim.command == line for claim in CLAIMS)]
    if words:
        return [line for line in used if any(word in line for word in words)]
    return [line for line in used if COMMANDS[line].stored or not quick or COMMANDS[line].quick]


def row(claim: Claim, *last: str) -> str:
    line, text, claimed = claim.place()
    text = text.replace("|", "/").strip("/ ")[:60]
    return f"{claim.page}:{line} | {text} | {claim.command} | {' '.join(claimed)} | {' | '.join(last)}"


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
            output = c.output(told.quick)
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
