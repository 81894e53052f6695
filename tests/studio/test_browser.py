"""The studio in a real browser: drawing, time, nodes, files, lost connections, two tabs. Screenshots go to out/studio.

Without playwright or Debian's Chromium these tests are skipped. `pytest -m slow -s tests/studio/test_browser.py` also prints frames
per second and the time from the pointer to the picture, measured in the page.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dgnet as dg
import dgnet_paper
from dgnet.studio.scene import mesh_scene, run_scene
from dgnet.studio.server import Entry, listening

pytest.importorskip("uvicorn")
api = pytest.importorskip("playwright.sync_api")
CHROMIUM = Path("/usr/bin/chromium")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Chromium")
SHOTS = Path(__file__).parents[2] / "out" / "studio"
PRETRAINED = Path(dgnet_paper.__file__).parent / "pretrained"
Page = Any


class Studio:
    """A server in a thread of its own, which can be ended and begun again on the same port."""

    def __init__(self) -> None:
        def trained(name: str) -> Entry:
            return Entry(name, name, lambda: run_scene(dg.load_run(PRETRAINED / f"{name}-converged")))

        self.entries = {
            "plate": Entry("Plate", "A small plate.", lambda: mesh_scene(dg.box((24, 16), perturb=0.2, seed=1), "plate")),
            "solid": Entry("Block", "A small block.", lambda: mesh_scene(dg.box((6, 5, 4)), "block")),
            **{name: trained(name) for name in ("laser-heat", "laser-heat-3d", "allen-cahn", "fitzhugh-nagumo")}}
        self.port = 0
        self.begin()

    def begin(self) -> None:
        self.address, serve, self.finish = listening(self.entries, "plate", self.port)
        self.port = int(self.address.rsplit(":", 1)[1].strip("/"))
        self.thread = threading.Thread(target=serve)
        self.thread.start()

    def end(self) -> None:
        self.finish()
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def studio() -> Iterator[Studio]:
    made = Studio()
    yield made
    made.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with api.sync_playwright() as started:
        software = ["--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader"]
        made = started.chromium.launch(executable_path=str(CHROMIUM), args=software)
        yield made
        made.close()


@pytest.fixture
def tab(studio: Studio, browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens a tab; at the end no script of any tab has failed and nothing was fetched from elsewhere."""
    contexts, wrong = [], []

    def opened(scene: str = "plate", width: int = 1400, height: int = 900, scheme: str = "light", hash_: str = "") -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        own = (studio.address, "data:", "blob:", "ws:")
        page.on("request", lambda r: None if r.url.startswith(own) else wrong.append(r.url))
        page.goto(studio.address + hash_)
        until(page, "window.studio && studio.frames.length > 1")
        if scene != "plate":
            page.evaluate(f"open('{scene}')")
            until(page, f"studio.scene.scene === '{scene}' && studio.frames.length > 1")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def until(page: Page, condition: str, seconds: float = 60.0) -> None:
    """Wait until a condition holds in the page; its policy forbids playwright's own way, which evaluates strings."""
    for _ in range(int(seconds / 0.05)):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"after {seconds:g} s this does not hold: {condition}")


def middle(page: Page) -> tuple[float, float]:
    box = page.locator("#above").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def stroke(page: Page, dx: float = 120.0, steps: int = 6) -> None:
    """Draw a source from left to right through the middle."""
    x, y = middle(page)
    page.mouse.move(x - dx, y)
    page.mouse.down()
    for k in range(1, steps + 1):
        page.mouse.move(x - dx + 2 * dx * k / steps, y)
        page.wait_for_timeout(40)
    page.mouse.up()


def drop(page: Page, name: str, content: bytes) -> None:
    """As if a file had been dropped on the page."""
    page.evaluate("""([name, bytes]) => {
        const held = new DataTransfer(); held.items.add(new File([Uint8Array.from(bytes)], name));
        document.dispatchEvent(new DragEvent("drop", {dataTransfer: held, bubbles: true, cancelable: true}));
    }""", [name, list(content)])


def mesh_bytes(folder: Path, name: str) -> bytes:
    dg.save_mesh(dg.box((5, 4)), folder / name)
    return (folder / name).read_bytes()


def test_draw_pause_scrub_click_and_upload(tab: Callable[..., Page], tmp_path: Path) -> None:
    page = tab()
    stroke(page)
    until(page, "limits(shownValues(studio.frames.at(-1)))[1] > 0.5")
    assert page.evaluate("studio.stats.latency.length") > 0
    page.keyboard.press("Space")
    page.wait_for_timeout(300)
    count = page.evaluate("studio.frames.length")
    page.wait_for_timeout(300)
    assert page.evaluate("studio.frames.length") == count and not page.evaluate("studio.playing")
    page.evaluate("const s = document.getElementById('scrub'); s.value = 1; s.dispatchEvent(new Event('input'))")
    until(page, "studio.shown === 1")
    assert page.locator("#branch").is_visible()
    assert page.locator("#clock").inner_text() == f"t = {page.evaluate('studio.frames[1].time'):g}"
    page.locator("#branch").click()  # what came later is forgotten
    until(page, "studio.playing && studio.shown > 2")
    assert page.evaluate("studio.frames.every((f, k) => k === 0 || f.step > studio.frames[k - 1].step)")
    page.locator("[data-tool=node]").click()
    page.mouse.click(*middle(page))
    assert page.locator("#node-value").is_visible()
    page.locator("#green").click()
    until(page, "studio.green !== null")
    assert page.evaluate("studio.green.values.indexOf(Math.max(...studio.green.values)) === studio.node.node")
    drop(page, "part.msh", b"this is no mesh")
    until(page, "document.getElementById('hint').textContent.includes('not a mesh')")
    drop(page, "part.vtu", mesh_bytes(tmp_path, "part.vtu"))
    until(page, "studio.scene.title === 'Heat in part.vtu' && studio.frames.length > 1")
    assert page.evaluate("studio.scene.nodes") == 30


@pytest.mark.slow
def test_sensors_tell_what_was_drawn(tab: Callable[..., Page]) -> None:
    page = tab()
    x, y = middle(page)
    page.locator("[data-tool=sensor]").click()
    for dx, dy in ((-60, -50), (50, -60), (-30, 60), (70, 50), (200, 120), (-220, -100)):
        page.mouse.click(x + dx, y + dy)
    page.locator("[data-tool=draw]").click()
    page.keyboard.down("Shift")
    page.mouse.click(x + 20, y + 10)
    page.keyboard.up("Shift")
    count = page.evaluate("studio.frames.length")
    until(page, f"studio.frames.length > {count} + 20")
    page.locator("#tell").click()
    until(page, "studio.told !== null")
    peaks = page.evaluate("""[0, 2].map(k => { const v = studio.told.rows[k], at = nodePoint(v.indexOf(Math.max(...v)));
        return [Math.max(...v), ...at]; })""")
    assert np.linalg.norm(np.subtract(peaks[0], peaks[1])[1:]) < 0.15 and 0.1 < peaks[0][0] < 3, peaks
    assert page.locator(".thumb").count() == 3
    page.locator("#told").scroll_into_view_if_needed()
    page.screenshot(path=str(SHOTS / "told.png"))
    page.keyboard.press("Space")
    until(page, "studio.told === null && studio.playing")


@pytest.mark.slow
def test_a_lost_connection_comes_back(studio: Studio, tab: Callable[..., Page]) -> None:
    page = tab()
    stroke(page)
    until(page, "limits(shownValues(studio.frames.at(-1)))[1] > 0.5")
    studio.end()
    until(page, "document.getElementById('status').textContent === 'connection lost'")
    page.screenshot(path=str(SHOTS / "lost.png"))
    before = page.evaluate("[studio.frames.length, studio.frames.at(-1).step, limits(shownValues(studio.frames.at(-1)))[1]]")
    page.keyboard.press("ArrowLeft")  # what was computed can still be looked at
    assert page.evaluate("studio.shown") == before[0] - 2
    page.keyboard.press("ArrowRight")
    studio.begin()
    until(page, "document.getElementById('status').textContent === 'connected'")
    page.keyboard.press("Space")
    until(page, f"studio.frames.at(-1).step > {before[1]}")
    assert 0 < page.evaluate("limits(shownValues(studio.frames.at(-1)))[1]") <= before[2]


@pytest.mark.slow
def test_two_tabs(tab: Callable[..., Page]) -> None:
    one, two = tab(), tab()
    stroke(one)
    until(one, "limits(shownValues(studio.frames.at(-1)))[1] > 0.5")
    until(two, "studio.frames.length > 3")
    assert two.evaluate("limits(shownValues(studio.frames.at(-1)))") == [0, 0]


@pytest.mark.slow
def test_settings_prepare_the_solver_anew(tab: Callable[..., Page]) -> None:
    page = tab("laser-heat")
    page.locator("#versus").select_option("classical")
    until(page, "studio.frames.at(-1).values.length === 2 * studio.scene.nodes")
    until(page, "studio.view === 'difference' && studio.frames.length > 5")
    page.screenshot(path=str(SHOTS / "difference.png"))
    row = page.locator("#equation .row").filter(has_text="time step")
    row.locator("input[type=text]").fill("0.25")
    row.locator("input[type=text]").press("Enter")
    until(page, "Math.abs(studio.frames.at(-1).time - studio.frames.at(-2).time - 0.25) < 1e-6")
    row = page.locator("#boundaries .row").filter(has_text="exchanges with")
    row.locator("input[type=text]").fill("1000")
    row.locator("input[type=text]").press("Enter")
    until(page, "studio.controls.conditions[0].value === 1000")
    until(page, "document.getElementById('status').textContent === 'connected'")
    row.locator("input[type=text]").fill("-")  # no number: the old one stays
    row.locator("input[type=text]").press("Enter")
    assert page.evaluate("studio.controls.conditions[0].value") == 1000


@pytest.mark.slow
def test_a_set_up_goes_away_and_comes_back(tab: Callable[..., Page], tmp_path: Path) -> None:
    page = tab()
    drop(page, "part.npz", mesh_bytes(tmp_path, "part.npz"))
    until(page, "studio.scene.title === 'Heat in part.npz'")
    page.locator("[data-tool=sensor]").click()
    page.mouse.click(*middle(page))
    page.locator("[data-tool=draw]").click()
    page.keyboard.down("Shift")
    page.mouse.click(*middle(page))
    page.keyboard.up("Shift")
    until(page, "limits(shownValues(studio.frames.at(-1)))[1] > 0.5")
    saved = {}
    for name in ("setup", "csv", "png", "gif"):
        with page.expect_download(timeout=60_000) as told:
            page.locator(f"#save-{name}").click()
        told.value.save_as(tmp_path / f"saved-{name}")
        saved[name] = (tmp_path / f"saved-{name}").read_bytes()
    pictures = pytest.importorskip("PIL.Image")
    moving = pictures.open(io.BytesIO(saved["gif"]))
    assert moving.n_frames > 2 and pictures.open(io.BytesIO(saved["png"])).width >= 1000
    for k in range(moving.n_frames):
        moving.seek(k)
        moving.load()
    assert len(np.unique(np.asarray(moving.convert("RGB"), dtype=int) @ [65536, 256, 1])) > 20
    lines = saved["csv"].decode().splitlines()
    assert "sensor 1" in lines[0] and len(lines) > 3
    other = tab()
    drop(other, "shared.json", saved["setup"])
    until(other, "studio.scene.title === 'Heat in part.npz' && studio.sensors.length === 1 && studio.spots.length === 1")
    until(other, "limits(shownValues(studio.frames.at(-1)))[1] > 0.1")
    drop(other, "wrong.json", json.dumps({"format": "something else"}).encode())
    until(other, "document.getElementById('hint').textContent.includes('not a saved set-up')")


@pytest.mark.slow
def test_by_keyboard_alone(tab: Callable[..., Page]) -> None:
    page = tab()
    page.locator("#above").focus()
    for key in ("ArrowRight", "ArrowDown", "Enter", "ArrowRight"):
        page.keyboard.press(key)
    until(page, "limits(shownValues(studio.frames.at(-1)))[1] > 0.5")
    page.keyboard.press("Enter")
    assert not page.evaluate("studio.pointer.on")
    page.keyboard.press("3")
    page.keyboard.press("Enter")
    assert page.evaluate("studio.sensors.length") == 1
    page.keyboard.press("r")
    until(page, "studio.frames.length > 0 && studio.frames[0].step === 0")
    page.keyboard.press("g")
    assert page.locator("#gallery").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#gallery").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("scene", ["plate", "solid"])
def test_both_ways_of_drawing_agree(tab: Callable[..., Page], scene: str) -> None:
    """WebGL, which a graphics card draws, against the page's own drawing: the same pixels up to the edges."""
    page = tab(scene, 900, 700, hash_="#webgl")
    page.evaluate("pause()")
    page.wait_for_timeout(300)
    share = page.evaluate("""() => {
        const values = new Float32Array(studio.scene.nodes).map((_, i) => Math.sin(7 * viewer.x[3 * i]) + viewer.x[3 * i + 1]);
        FieldViewer.card = () => false;
        const canvases = [0, 1].map(() => document.getElementById("stage").appendChild(document.createElement("canvas")));
        const other = new FieldViewer(...canvases, galleryData.colours);
        if (!viewer.gl || other.gl) throw new Error("this compares nothing");
        const pictures = [viewer, other].map(v => {
            v.headroom = 0; v.legend = false; v.marks = []; v.open(studio.mesh); if (studio.mesh.dim === 3) v.cut(0, 0.6);
            v.range = limits(values); v.show(values);
            const made = v.picture(600, "#ffffff", "");
            return made.getContext("2d").getImageData(0, 0, made.width, made.height).data; });
        let far = 0;
        for (let i = 0; i < pictures[0].length; i += 4) {
            const d = [0, 1, 2].map(c => Math.abs(pictures[0][i + c] - pictures[1][i + c]));
            if (Math.max(...d) > 24) far++;
        }
        const drawn = pictures[1].filter((v, i) => i % 4 === 0 && v < 250).length;
        return [far / (pictures[0].length / 4), drawn / (pictures[1].length / 4)]; }""")
    assert share[0] < 0.02 and share[1] > 0.15, share


@pytest.mark.slow
@pytest.mark.parametrize("width, height", [(1400, 900), (400, 800)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_is_pictured(tab: Callable[..., Page], width: int, height: int, scheme: str) -> None:
    page = tab("laser-heat", width, height, scheme)
    page.locator("[data-tool=sensor]").click()
    x, y = middle(page)
    page.mouse.click(x - 0.2 * width, y + 80)
    page.mouse.click(x + 0.2 * width, y + 80)
    until(page, "studio.frames.length > 12")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=str(SHOTS / f"plate-{width}-{scheme}.png"))
    page.evaluate("open('laser-heat-3d')")
    until(page, "studio.scene.dim === 3 && studio.frames.length > 8")
    page.locator("#picture select").nth(1).select_option("1")
    page.wait_for_timeout(800)
    page.screenshot(path=str(SHOTS / f"bracket-{width}-{scheme}.png"))
    page.locator("#gallery-open").click()
    page.wait_for_timeout(200)
    assert page.evaluate("document.getElementById('gallery').scrollWidth <= document.getElementById('gallery').clientWidth")
    page.screenshot(path=str(SHOTS / f"gallery-{width}-{scheme}.png"))


@pytest.mark.slow
def test_speed_measured_in_the_page(studio: Studio, tab: Callable[..., Page]) -> None:
    """Prints; only that frames arrive is asserted, because machines differ."""
    studio.entries["large"] = Entry("Large", "", lambda: mesh_scene(dg.box((316, 316), perturb=0.2, seed=1), "large"))
    for name, settings in (("laser-heat", "studio.steps = 5; studio.driven = false"), ("large", "studio.steps = 1")):
        studio.end()
        studio.begin()
        page = tab(name)
        page.evaluate(settings)
        x, y = middle(page)
        page.mouse.move(x - 150, y - 100)
        page.mouse.down()
        page.wait_for_timeout(1500)
        page.evaluate("studio.stats.latency.length = studio.stats.parts.length = studio.stats.shown = 0")
        page.evaluate("window.began = performance.now()")
        for k in range(60):
            page.mouse.move(x - 150 + 5 * k, y - 100 + 3 * (k % 10))
            page.wait_for_timeout(60)
        shown, took = page.evaluate("[studio.stats.shown, (performance.now() - window.began) / 1000]")
        latency = page.evaluate("studio.stats.latency.slice().sort((a, b) => a - b)")
        server = page.evaluate("studio.frames.slice(-20).map(f => f.milliseconds).sort((a, b) => a - b)[10]")
        parts = np.array(page.evaluate("studio.stats.parts"))
        late_ones = parts[parts.sum(1) >= np.quantile(parts.sum(1), 0.9)].mean(0)
        page.mouse.up()
        page.screenshot(path=str(SHOTS / f"speed-{name}.png"))
        nodes, steps = page.evaluate("[studio.scene.nodes, studio.steps]")
        middle_, late = (latency[int(share * len(latency))] for share in (0.5, 0.95))
        print(f"\n{nodes} nodes, {steps} steps a frame: {shown / took:.1f} frames/s; from pointer to picture {middle_:.0f} ms "
              f"(median), {late:.0f} ms (95%); computing {server:.0f} ms a frame; the slowest tenth: "
              f"{late_ones[0]:.0f} ms until asked, {late_ones[1]:.0f} ms until answered, {late_ones[2]:.0f} ms until drawn")
        assert shown > 3 and latency
        page.close()


@pytest.mark.slow
def test_the_report_page_opens_from_disk(browser: Any, tmp_path: Path) -> None:
    """The viewer inside RUN/report.html: time, switch, probes and files, without any request."""
    from dgnet.models.dgnet import DGNetConfig
    from dgnet.recipe import Recipe, Stage
    from dgnet.report import figures, page
    from dgnet.training.plan import Plan
    from dgnet.training.run import train
    from dgnet_paper.scenarios import get
    from dgnet_paper.scenarios.generate import generate

    scenario = get("laser-heat-3d", "small")
    data = generate(scenario, tmp_path, truth="same-mesh", trajectories=1)
    run, _ = train(scenario, "same-mesh", data, tmp_path / "run",
                   Plan(DGNetConfig(hidden=8, layers=1), Recipe("short", (Stage(2, 3, batch=1, lr=1e-2),))))
    result, states, truth = dg.evaluate(run, data)
    drawn = figures.draw(run, result, states, truth, tmp_path / "figures")
    report = page.write(run, result, states, truth, drawn, tmp_path / "report.html")
    wrong: list[str] = []
    for width, height in ((1400, 900), (400, 800)):
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True, accept_downloads=True)
        tab = context.new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else wrong.append(r.url))
        tab.goto(report.as_uri())
        until(tab, "window.report !== undefined && report.viewer.values !== null")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.locator("#field-box").scroll_into_view_if_needed()
        x, y = tab.evaluate("""() => {
            const c = report.viewer.canvas, box = c.getBoundingClientRect(), hits = [];
            for (let x = 0; x < box.width; x += 8) for (let y = 0; y < box.height; y += 8)
                if (report.viewer.pick(x, y)?.inside) hits.push([box.left + x, box.top + y]);
            return hits[hits.length >> 1]; }""")
        tab.mouse.click(x, y)
        assert tab.evaluate("report.state.probes.length") == 1
        tab.locator("#field-box select").nth(1).select_option("1")
        tab.locator("#field-box select").first.select_option("e0")
        assert tab.evaluate("report.viewer.map") == "diverging" and tab.evaluate("report.viewer.section !== null")
        tab.locator("#field-box button", has_text="Play").click()
        before = tab.evaluate("report.state.frame")
        until(tab, f"report.state.frame !== {before}")
        tab.screenshot(path=str(SHOTS / f"report-{width}.png"))
        tab.locator("#field-box button", has_text="Pause").click()
        for word, name in (("JSON", "a.json"), ("CSV", "a.csv"), ("VTU", "a.vtu")):
            with tab.expect_download() as told:
                tab.locator("#field-box button", has_text=word).click()
            told.value.save_as(tmp_path / name)
        context.close()
    assert not wrong
    assert json.loads((tmp_path / "a.json").read_text())["scores"]["dgnet"]["rne"] == result["scores"]["dgnet"]["rne"]
    assert len((tmp_path / "a.csv").read_text().splitlines()) == scenario.steps + 2
    assert dg.load_mesh(tmp_path / "a.vtu").n_cells == scenario.mesh.n_cells
