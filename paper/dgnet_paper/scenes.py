"""The scenes of the studio's gallery: scenarios that can be played, with their shipped weights (entry point `dgnet.scenes`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dgnet.studio.server import Entry

ABOUT = {
    "laser-heat": "Ten lasers heat a steel plate; you hold the eleventh.",
    "laser-heat-3d": "Lasers on a steel bracket. Turn it, and cut it open.",
    "fitzhugh-nagumo": "An excitable medium: a touch starts a wave, two waves put each other out.",
    "spiral": "Waves that chase their own tails. Break one with the pointer.",
    "cardiac": "A beat runs through heart muscle whose fibres turn with depth.",
    "light-reaction": "Patterns of light drive a reaction in a dish.",
    "allen-cahn": "Noise separates into two phases, and the interfaces shrink.",
    "fisher-kpp": "A population spreads and is carried by the wind.",
    "phase-transition": "Lasers melt a plate; the model knows the latent heat only from data.",
    "melting": "Lasers melt a plate, with the latent heat in the equation.",
    "cylinder": "A contaminant in the vortices behind a cylinder. Pour some into the stream.",
    "sediments": "A contaminant drifts over deposits on the bed of a channel.",
    "obstacles": "A contaminant finds its way between obstacles.",
    "wavy-channel": "A contaminant between walls that swing.",
}


def gallery() -> dict[str, Entry]:
    """The scenarios that can be played, with their pretrained model where one ships."""
    from dgnet.studio.scene import Scene, case_scene, run_scene
    from dgnet.studio.server import Entry
    from dgnet.training.run import Run
    from dgnet_paper.scenarios import get, names
    from dgnet_paper.scenarios.looped import ships
    from dgnet_paper.study.pretrained import SHELF, label, shipped

    def opened(name: str) -> Scene:
        return run_scene(Run.open(trained[name])) if name in trained else case_scene(get(name, "paper"))

    trained = {card.scenario: SHELF / label(card.scenario, card.size, card.truth) for card in shipped()
               if (card.size, card.truth) == ("paper", "converged")}
    found = {}
    for name in [*ABOUT, *(n for n in names() if n not in ABOUT)]:
        case = get(name, "paper")
        if not case.given_flow or ships(name):
            title = case.title.removesuffix(" (not in the paper)")
            found[name] = Entry(title, ABOUT.get(name, case.geometry), partial(opened, name))
    return found
