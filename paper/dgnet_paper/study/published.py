"""Figures of the paper that belong to no single scenario's accuracy table (those are in `Scenario.paper`)."""

from __future__ import annotations

# Robustness to source characteristics (Appendix F): MSE at 0.5, 1, 2, 3 times the training distribution. Its 1x column repeats
# the MSE of the two-dimensional laser (17.6) although the table is about the three-dimensional one (44.2 in its own table).
ROBUSTNESS = {
    "spot size": (15.3, 17.6, 38.8, 73.6),
    "power": (22.7, 17.6, 16.2, 19.5),
    "number of sources": (10.9, 17.6, 32.6, 44.0),
}

# DGNet on one RTX 4090 (Appendix D): nodes, seconds to prepare, ms per step, seconds per trajectory, steps/s, peak MB.
THROUGHPUT = {
    "allen-cahn": (1296, 0.6274, 7.7419, 8.3693, 129.17, 152.60),
    "fisher-kpp": (1681, 3.6413, 7.5764, 15.7636, 131.99, 227.97),
    "fitzhugh-nagumo": (10000, 10.7362, 10.8723, 23.7829, 91.98, 3830.72),
    "cylinder": (2275, 2.5194, 7.7895, 18.0984, 128.38, 368.81),
    "sediments": (5758, 6.0459, 7.7943, 21.6345, 128.30, 1570.49),
    "obstacles": (8841, 9.6110, 9.7367, 29.0844, 102.70, 3258.10),
    "laser-heat": (6072, 1.9382, 7.7363, 2.8666, 129.26, 1570.65),
}

# Seconds of one trajectory on one RTX 4090 (Appendix D).
INFERENCE = {
    "allen-cahn": {"deeponet": 1.33, "mgn": 5.12, "mp-pde": 5.96, "beno": 14.06, "phympgn": 6.71, "dgnet": 8.37},
    "fisher-kpp": {"deeponet": 2.77, "mgn": 12.74, "mp-pde": 19.20, "beno": 75.92, "phympgn": 17.40, "dgnet": 15.76},
    "fitzhugh-nagumo": {"deeponet": 106.52, "mgn": 15.48, "mp-pde": 45.23, "beno": 67.32, "phympgn": 10.72, "dgnet": 23.78},
    "cylinder": {"deeponet": 6.38, "mgn": 20.15, "mp-pde": 24.90, "beno": 133.01, "phympgn": 12.47, "dgnet": 18.10},
    "sediments": {"deeponet": 58.94, "mgn": 21.47, "mp-pde": 31.25, "beno": 101.10, "phympgn": 14.59, "dgnet": 21.63},
    "obstacles": {"deeponet": 141.92, "mgn": 23.59, "mp-pde": 47.36, "beno": 108.96, "phympgn": 20.31, "dgnet": 29.08},
    "laser-heat": {"deeponet": 4.22, "mgn": 2.56, "mp-pde": 3.95, "beno": 2.30, "phympgn": 1.73, "dgnet": 2.87},
}
