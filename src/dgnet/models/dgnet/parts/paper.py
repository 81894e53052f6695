"""The paper's own model and the variants of its ablation."""

from __future__ import annotations

from dataclasses import replace

from dgnet.models.dgnet.config import DGNetConfig

PAPER = DGNetConfig(decoder="edge", residual=True, consistent=0.0, learn_mass=False, learn_source=False, learn_diffusion=False)
VARIANTS = {
    "A": replace(PAPER, physics=False),  # without L_physics
    "B": replace(PAPER, decoder="none"),  # without L_neural
    "C": replace(PAPER, residual=False),  # without the residual network
    "D": replace(PAPER, green=False, decoder="none"),  # without the Green solver
}
