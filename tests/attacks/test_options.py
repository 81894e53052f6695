"""Options of every command: negative, zero, not a number, infinite, huge, empty, of a wrong kind, contradictory, unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.conftest import TAG
from tests.attacks.harness import Case, Outcome, face, parameters, refusals

NOTHING = refusals("empty", """
nonsense | nonsense
--nonsense check | --nonsense
paper scenarios --json . | .
models --jsn x.json | --jsn
new | folder
new tiny --seed -1 | seed
new tiny --seed 1.5 | seed
new tiny --seed ten | seed
new tiny --seed 99999999999999999999999999 | seed
new a b | b
check nowhere | nowhere
check nowhere --device tpu | tpu
check nowhere --device cuda:99 | CUDA
check nowhere --device '' | device
check nowhere --device cpu:0:0 | device
check --json x.json | folder
import nowhere | nowhere
train nowhere --out run | nowhere
paper train laser-heet --out run | laser-heat
paper train laser-heat | --out
paper train laser-heat --out run --size tiny | tiny
paper train laser-heat --out run --truth exact | exact
paper train laser-heat --out run --recipe secret | secret
paper train laser-heat --out run --model dgnit | dgnit
paper train laser-heat --out run --model classical | classical
paper train laser-heat --out run --model mgn --amp | mgn
paper train laser-heat --out run --model mgn --unknown-reaction | unknown-reaction
paper train laser-heat --out run --model mgn --recipe paper | recipe
paper train laser-heat --out run --budget 0 | --budget
paper train laser-heat --out run --budget -3 | --budget
paper train laser-heat --out run --budget nan | --budget
paper train laser-heat --out run --budget inf | --budget
paper train laser-heat --out run --budget two | --budget
paper train laser-heat --out run --seed -1 | seed
paper train laser-heat --out run --seed 18446744073709551616 | seed
paper train laser-heat --out run --trajectories 0 | trajectories
paper train laser-heat --out run --trajectories -5 | trajectories
paper train laser-heat --out run --trajectories 2.5 | trajectories
paper train laser-heat --out run --unknown-reaction | reaction
paper train laser-heat --out run --device gpu | gpu
train '' --out run | problem.toml
evaluate | RUN
evaluate nowhere | nowhere
evaluate nowhere --split validation | nowhere
evaluate nowhere --budget 5 | --budget
evaluate nowhere --leave-one-out --budget nan | --budget
evaluate nowhere --leave-one-out --budget -1 | --budget
evaluate nowhere --truth converged | --truth
evaluate nowhere --trajectories 3 | --trajectories
paper evaluate laser-heet | laser-heat
paper evaluate laser-heat --truth exact | exact
paper evaluate laser-heat --trajectories 0 | trajectories
paper evaluate laser-heat --trajectories -1 | trajectories
paper evaluate '' | name
rollout | run
rollout nowhere --trajectory 0 | nowhere
paper analyse nowhere | nowhere
export nowhere --out x.pt2 | nowhere
export nowhere | --out
show nowhere.h5 --out pictures | nowhere.h5
show . --out pictures | folder
paper generate laser-heat | --out
paper generate laser-heet --out data | laser-heat
paper generate laser-heat --out data --size big | big
paper generate laser-heat --out data --truth exact | exact
paper generate laser-heat --out data --trajectories 0 | trajectories
paper generate laser-heat --out data --trajectories -2 | trajectories
paper generate laser-heat --out data --trajectories many | trajectories
paper generate laser-heat --out data --seed -1 | seed
paper generate laser-heat --out data --seed 1e3 | seed
paper generate laser-heat --out data --device cuda:7 | CUDA
paper generate laser-heat-3d --out data --scale 0 1 1 | scale
paper generate laser-heat-3d --out data --scale 1 -1 1 | scale
paper generate laser-heat-3d --out data --scale 1 nan 1 | scale
paper generate laser-heat-3d --out data --scale 1 1 inf | scale
paper generate laser-heat-3d --out data --scale 1 1 1e9 | scale
paper generate allen-cahn --out data --scale 2 1 1 | allen-cahn
paper certify laser-heet | laser-heat
paper certify laser-heat --trajectories 0 | trajectories
paper certify laser-heat --trajectories -1 | trajectories
paper certify laser-heat --steps 0 | steps
paper certify laser-heat --steps -3 | steps
paper certify laser-heat --steps 999999 | steps
paper certify laser-heat --seed -4 | seed
paper certify laser-heat --truth '' | truth
paper certify laser-heat --size 7 | 7
paper certify laser-heat --flows flows | --flows
paper cards --only laser-heet --out cards | laser-heat
paper cards --only '' --out cards | only
paper cards --certificates nowhere.json --out cards | nowhere.json
paper cards --data nowhere --only laser-heat --out cards | nowhere
paper demo --seed -1 | seed
paper demo --device tpu | tpu
paper demo --seed zero | seed
paper reproduce | target
paper reproduce table-nain | table-main
paper reproduce train_laser-heat_small_converged_mgn | train_laser-heat_small_converged_mgn
paper reproduce train_laser-heat_small_converged_mgn_s-1 | negative
paper reproduce train_laser-heat_small_converged_mgn_s0_fnan | fnan
paper reproduce train_laser-heat_small_converged_mgn_s0_finf | finf
paper reproduce train_laser-heat_small_converged_mgn_s0_xnan-1-1 | xnan
paper reproduce train_laser-heat_small_converged_mgn_s0_n-2 | n-2
paper reproduce train_squares_small_converged_mgn_s0 | squares
paper reproduce classical_laser-heat_small_converged_mgn_s0 | classical
paper reproduce train_laser-heat_small_converged_classical_s0 | classical
paper reproduce train_laser-heat_small_converged_every_s0 | every
paper reproduce robust_allen-cahn_small_converged_dgnet_s0_x2-1-1 | allen-cahn
paper reproduce ../../etc | etc
paper reproduce table-main --seeds 0 | seeds
paper reproduce table-main --seeds -2 | seeds
paper reproduce table-main --budget 0 | --budget
paper reproduce table-main --budget nan | --budget
paper reproduce table-main --budget inf | --budget
paper reproduce table-main --makers 0 | makers
paper reproduce table-main --makers -1 | makers
paper reproduce table-main --workers 0 | workers
paper reproduce table-main --workers -1 | workers
paper reproduce table-main --sharing 0 | sharing
paper reproduce table-main --few -1 | few
paper reproduce table-main --factor 0 | factor
paper reproduce table-main --factor -1 | factor
paper reproduce table-main --factor nan | factor
paper reproduce table-main --factor inf | factor
paper reproduce table-main --trajectories -1 | trajectories
paper reproduce table-main --trajectories 0 | trajectories
paper reproduce table-main --stop-after nan | stop-after
paper reproduce table-main --stop-after -1 | stop-after
paper reproduce table-main --models mgm | mgn
paper reproduce table-main --models '' | models
paper reproduce table-main --scenarios ' , ' | scenarios
paper reproduce table-main --scenarios laser-heet | laser-heat
paper reproduce table-main --size huge | huge
paper reproduce table-main --truth exact | exact
paper reproduce table-main --device tpu --plan | tpu
paper reproduce table-main extra | extra
paper reproduce table-main --unknown-reaction --models mgn --scenarios laser-heat | unknown-reaction
paper reproduce train_laser-heat_small_same-mesh_mgn_s0_d1_f0.001 --seeds 3 | --seeds
paper reproduce train_laser-heat_small_same-mesh_mgn_s0_d1_f0.001 --models dgnet | --models
paper reproduce train_laser-heat_small_same-mesh_mgn_s0_d1_f0.001 --truth converged | --truth
paper reproduce merge | merge
paper reproduce merge nowhere --out study | nowhere
paper report | folders
paper report nowhere | nowhere
paper score | predictions
paper score nowhere.h5 nothing.h5 | nothing.h5
paper score . . | folder
paper pretrained --folder nowhere | nowhere
paper pretrained pack | cells
paper pretrained pack nowhere | nowhere
paper pretrained pack . | cell
""")

OWN = refusals("project", """
train tiny --out run --budget 0 | --budget
train tiny --out run --budget -1 | --budget
train tiny --out run --budget nan | --budget
train tiny --out run --budget inf | --budget
train tiny --out run --budget 1e400 | --budget
train tiny --out run --unknown-reaction | --unknown-reaction
train tiny --out run --recipe paper | --recipe
train tiny --out run --recipe staged | --recipe
train tiny --out run --truth converged | --truth
train tiny --out run --size small | --size
train tiny --out run --data tiny | --data
train tiny --out run --model classical | classical
train tiny --out run --model mgm | mgn
train tiny --out run --seed -1 | seed
train tiny --out run --trajectories 0 | trajectories
train tiny --out run --trajectories -1 | trajectories
train tiny --out run --trajectories 50 | trajectories
train tiny --out tiny | tiny
train tiny/problem.toml --out run | problem.toml
check tiny/problem.toml | problem.toml
check tiny/plate.msh | plate.msh
check . | problem.toml
check tiny --json tiny | tiny
check tiny --json tiny/problem.toml/x.json | problem.toml
new tiny | tiny
new tiny/plate.msh | plate.msh
""")

RUN = refusals("run", """
evaluate run --split all | all
evaluate run --data tiny | folder
evaluate run --data tiny/plate.msh | plate.msh
evaluate tiny | tiny
rollout run | --source
rollout run --trajectory -1 | -1
rollout run --trajectory 3 | 3
rollout run --trajectory 1e9 | trajectory
rollout run --trajectory 0 --steps 0 | steps
rollout run --trajectory 0 --steps -2 | steps
rollout run --trajectory 0 --steps 2.5 | steps
rollout run --trajectory 0 --every 0 | every
rollout run --trajectory 0 --every -1 | every
rollout run --trajectory 0 --source nowhere.csv | nowhere.csv
rollout run --trajectory 0 --source tiny | tiny
rollout run --trajectory 0 --initial nowhere.npy | nowhere.npy
rollout run --trajectory 0 --initial tiny/run-1.csv | run-1.csv
rollout run --trajectory 0 --data tiny/plate.msh | plate.msh
rollout run --data tiny/imported.h5 --source tiny/run-1.csv | --data
rollout run --trajectory 0 --vtk x.vtu | .pvd
rollout run --trajectory 0 --xdmf x.h5 | .xdmf
rollout run --trajectory 0 --gif x.png | .gif
rollout run --trajectory 0 --png x.gif | .png
rollout run --trajectory 0 --mp4 x.avi | .mp4
rollout run --trajectory 0 --out tiny | tiny
rollout run --trajectory 0 --out tiny/problem.toml | problem.toml
rollout run --trajectory 0 --data tiny/imported.h5 --out tiny/imported.h5 | imported.h5
rollout run --trajectory 0 --png tiny/plate.msh/x.png | plate.msh
rollout run --trajectory 0 --device tpu | tpu
rollout run --trajectory 0 --json run | run
export run --out x.txt | .pt2
export run --out x.pt2 --batch 0 | batch
export run --out x.pt2 --batch -1 | batch
export run --out tiny | tiny
export run --out x.c --batch 2 | --batch
export run --out x.onnx --probe 0,0 | --probe
export run --out x.fmu --fmi 4 | --fmi
export run --out x.fmu --probe here | here
export run --out x.fmu --spots -1 | --spots
export run --out x.c --model universal | --model
export tiny --out x.c --allow-different | --allow-different
paper analyse run --data nowhere.h5 | nowhere.h5
paper analyse run --out tiny/problem.toml | problem.toml
show tiny/imported.h5 --out pictures --trajectory 9 | 9
show tiny/imported.h5 --out pictures --trajectory -1 | trajectory
show tiny/imported.h5 --out pictures --snapshots 0 | snapshots
show tiny/imported.h5 --out pictures --snapshots -4 | snapshots
show tiny/imported.h5 --out pictures --frames 0 | frames
show tiny/imported.h5 --out pictures --frames -1 | frames
show tiny/imported.h5 --out pictures --frames 1 --no-gif | frames
show tiny/imported.h5 --out tiny/problem.toml | problem.toml
show tiny/plate.msh --out pictures | plate.msh
paper score tiny/imported.h5 tiny/imported.h5 --split validation | validation
paper score tiny/imported.h5 tiny/imported.h5 --trajectory 0 | trajectories
paper score tiny/imported.h5 tiny/imported.h5 --trajectory -1 | trajectory
paper score tiny/imported.h5 tiny/imported.h5 --json tiny | tiny
train tiny --out run --seed 5 | run
train tiny --out run/weights.pt | weights.pt
""")


def learned_nothing(outcome: Outcome) -> None:
    assert "nothing was learned" in outcome.out
    assert json.loads((outcome.folder / "x.json").read_text())["learned"] is False


def right_score(outcome: Outcome) -> None:
    assert json.loads((outcome.folder / "x.json").read_text())["score"]["mse"] == 0.0


def file_of(name: str) -> Callable[[Outcome], None]:
    def there(outcome: Outcome) -> None:
        assert (outcome.folder / name).stat().st_size > 0
    return there


WORKS = [
    Case("rollout run --trajectory 0 --every 100 --png x.png", ground="run", right=file_of("x.png")),
    Case("rollout run --trajectory 0 --out x.h5 --xdmf x.xdmf", ground="run", right=file_of("x.xdmf.h5")),
    Case("train tiny --out run --budget 1e-9 --json x.json", ground="project", right=learned_nothing),
    Case("paper score tiny/imported.h5 tiny/imported.h5 --json x.json", ground="run", right=right_score),
    Case("rollout run --trajectory 0 --png 'a [b] $c %d.png'", ground="run", right=file_of("a [b] $c %d.png")),
    Case("rollout run --trajectory 0 --out 'x[/y].h5'", ground="run", right=file_of("x[/y].h5")),
    Case("check tiny --json 'ä ö/✓.json'", ground="project", right=file_of("ä ö/✓.json")),
    Case("check 'x[/y]'", does=lambda at: (at / "x[").mkdir() or (at / "tiny").rename(at / "x[/y]"), ground="project",
         right=file_of("x[/y]/imported.h5")),
    Case(f"paper reproduce {TAG} --out study --data data --plan", ground="study", right=lambda o: None),
]

CASES = NOTHING + OWN + RUN + WORKS


@pytest.mark.parametrize("case", parameters(CASES))
def test_case(case: Case, grounds: Callable[[str], Path], tmp_path: Path) -> None:
    face(case, grounds, tmp_path)
