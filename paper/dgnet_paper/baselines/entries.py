"""The baselines and the paper's own DGNet by name, as the registry of models lists them (entry point `dgnet.models`)."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from dgnet.models.registry import TOLD_ALL, TOLD_FIELDS, Entry
from dgnet_paper import model
from dgnet_paper.baselines import amg, beno, deeponet, mgn, mp_pde, opinf, phympgn, pod, reduced, singer, transolver


def _baseline(module: ModuleType, title: str, config: Any, make: Any, published: int | None = None,
              told: str = TOLD_FIELDS) -> Entry:
    settings = {"comparable": config.comparable(), "published": config.published()}
    return Entry(title, config, make, settings, module.RECIPE, published, told)


ENTRIES: dict[str, Entry] = {
    "deeponet": _baseline(deeponet, "DeepONet", deeponet.DeepONetConfig, deeponet.DeepONet),
    "mgn": _baseline(mgn, "MGN", mgn.MGNConfig, mgn.MGN, 2_300_000),
    "mp-pde": _baseline(mp_pde, "MP-PDE", mp_pde.MPPDEConfig, mp_pde.MPPDE, 630_000),
    "beno": _baseline(beno, "BENO", beno.BENOConfig, beno.BENO, 8_700_000),
    "phympgn": _baseline(phympgn, "PhyMPGN", phympgn.PhyMPGNConfig, phympgn.PhyMPGN, 950_000,
                         "diffusion; " + TOLD_FIELDS),
    "transolver": _baseline(transolver, "Transolver", transolver.TransolverConfig, transolver.Transolver, 710_000),
    "amg": _baseline(amg, "AMG", amg.AMGConfig, amg.AMG, 3_500_000),
    "singer": _baseline(singer, "SINGER-style", singer.SingerConfig, singer.Singer),
    "pod": _baseline(reduced, "POD–Galerkin", pod.PODConfig, pod.POD, told=TOLD_ALL),
    "opinf": _baseline(reduced, "operator inference", opinf.OpInfConfig, opinf.OpInf, told="data only, flow"),
} | model.ENTRIES
