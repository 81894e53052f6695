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
version now | now
scenarios --json . | .
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
train laser-heet --out run | laser-heat
train laser-heat | --out
train laser-heat --out run --size tiny | tiny
train laser-heat --out run --truth exact | exact
train laser-heat --out run --recipe secret | secret
train laser-heat --out run --model dgnit | dgnit
train laser-heat --out run --model classical | classical
train laser-heat --out run --model mgn --amp | mgn
train laser-heat --out run --model mgn --unknown-reaction | unknown-reaction
train laser-heat --out run --model mgn --recipe paper | recipe
train laser-heat --out run --budget 0 | --budget
train laser-heat --out run --budget -3 | --budget
train laser-heat --out run --budget nan | --budget
train laser-heat --out run --budget inf | --budget
train laser-heat --out run --budget two | --budget
train laser-heat --out run --seed -1 | seed
train laser-heat --out run --seed 18446744073709551616 | seed
train laser-heat --out run --trajectories 0 | trajectories
train laser-heat --out run --trajectories -5 | trajectories
train laser-heat --out run --trajectories 2.5 | trajectories
train laser-heat --out run --unknown-reaction | reaction
train laser-heat --out run --device gpu | gpu
train '' --out run | scenario
evaluate | RUN
evaluate nowhere | nowhere
evaluate nowhere --split validation | validation
evaluate nowhere --budget 5 | --budget
evaluate nowhere --leave-one-out --budget nan | --budget
evaluate nowhere --leave-one-out --budget -1 | --budget
evaluate nowhere --truth converged | --truth
evaluate nowhere --trajectories 3 | --trajectories
rollout | run
rollout nowhere --trajectory 0 | nowhere
analyse nowhere | nowhere
export nowhere --out x.pt2 | nowhere
export nowhere | --out
show nowhere.h5 --out pictures | nowhere.h5
show . --out pictures | folder
generate laser-heat | --out
generate laser-heet --out data | laser-heat
generate laser-heat --out data --size big | big
generate laser-heat --out data --truth exact | exact
generate laser-heat --out data --trajectories 0 | trajectories
generate laser-heat --out data --trajectories -2 | trajectories
generate laser-heat --out data --trajectories many | trajectories
generate laser-heat --out data --seed -1 | seed
generate laser-heat --out data --seed 1e3 | seed
generate laser-heat --out data --device cuda:7 | CUDA
generate laser-heat-3d --out data --scale 0 1 1 | scale
generate laser-heat-3d --out data --scale 1 -1 1 | scale
generate laser-heat-3d --out data --scale 1 nan 1 | scale
generate laser-heat-3d --out data --scale 1 1 inf | scale
generate laser-heat-3d --out data --scale 1 1 1e9 | scale
generate allen-cahn --out data --scale 2 1 1 | allen-cahn
certify laser-heet | laser-heat
certify laser-heat --trajectories 0 | trajectories
certify laser-heat --trajectories -1 | trajectories
certify laser-heat --steps 0 | steps
certify laser-heat --steps -3 | steps
certify laser-heat --steps 999999 | steps
certify laser-heat --seed -4 | seed
certify laser-heat --truth '' | truth
certify laser-heat --size 7 | 7
certify laser-heat --flows flows | --flows
cards --only laser-heet --out cards | laser-heat
cards --only '' --out cards | only
cards --certificates nowhere.json --out cards | nowhere.json
cards --data nowhere --only laser-heat --out cards | nowhere
demo --seed -1 | seed
demo --device tpu | tpu
demo --seed zero | seed
reproduce | target
reproduce table-nain | table-main
reproduce train_laser-heat_small_converged_mgn | train_laser-heat_small_converged_mgn
reproduce train_laser-heat_small_converged_mgn_s-1 | negative
reproduce train_laser-heat_small_converged_mgn_s0_fnan | fnan
reproduce train_laser-heat_small_converged_mgn_s0_finf | finf
reproduce train_laser-heat_small_converged_mgn_s0_xnan-1-1 | xnan
reproduce train_laser-heat_small_converged_mgn_s0_n-2 | n-2
reproduce train_squares_small_converged_mgn_s0 | squares
reproduce classical_laser-heat_small_converged_mgn_s0 | classical
reproduce train_laser-heat_small_converged_classical_s0 | classical
reproduce train_laser-heat_small_converged_every_s0 | every
reproduce robust_allen-cahn_small_converged_dgnet_s0_x2-1-1 | allen-cahn
reproduce ../../etc | etc
reproduce table-main --seeds 0 | seeds
reproduce table-main --seeds -2 | seeds
reproduce table-main --budget 0 | --budget
reproduce table-main --budget nan | --budget
reproduce table-main --budget inf | --budget
reproduce table-main --sharing 0 | sharing
reproduce table-main --few -1 | few
reproduce table-main --factor 0 | factor
reproduce table-main --factor -1 | factor
reproduce table-main --factor nan | factor
reproduce table-main --factor inf | factor
reproduce table-main --trajectories -1 | trajectories
reproduce table-main --trajectories 0 | trajectories
reproduce table-main --models mgm | mgn
reproduce table-main --models '' | models
reproduce table-main --scenarios ' , ' | scenarios
reproduce table-main --scenarios laser-heet | laser-heat
reproduce table-main --size huge | huge
reproduce table-main --truth exact | exact
reproduce table-main --device tpu --plan | tpu
reproduce table-main extra | extra
reproduce table-main --unknown-reaction --models mgn --scenarios laser-heat | unknown-reaction
reproduce train_laser-heat_small_same-mesh_mgn_s0_d1_f0.001 --seeds 3 | --seeds
reproduce train_laser-heat_small_same-mesh_mgn_s0_d1_f0.001 --models dgnet | --models
reproduce train_laser-heat_small_same-mesh_mgn_s0_d1_f0.001 --truth converged | --truth
reproduce merge | merge
reproduce merge nowhere --out study | nowhere
reproduce merge nowhere --out study --seeds 3 | merge
report | folders
report nowhere | nowhere
score | predictions
score nowhere.h5 nothing.h5 | nothing.h5
score . . | folder
pretrained --folder nowhere | nowhere
pretrained pack | cells
pretrained pack nowhere | nowhere
pretrained pack . | cell
bench nothing | nothing
bench solver --sizes '4D 3k' | 4D
bench solver --stiffness -1 --sizes '2D 1.3k' | stiffness
bench solver --stiffness nan --sizes '2D 1.3k' | stiffness
bench solver --stiffness 0 --sizes '2D 1.3k' | stiffness
bench rollout --mesh moon | moon
bench rollout --device tpu | tpu
bench model --scenario laser-heet | laser-heat
bench model --steps 0 | steps
bench model --seed -1 --size small --steps 1 | seed
bench model --run nowhere | nowhere
bench model --size huge | huge
bench throughput --trajectories 0 | trajectories
bench throughput --steps -1 | steps
bench throughput --models dgnit --size small --steps 1 | dgnit
bench throughput --setting secret --size small --steps 1 | secret
bench throughput --seed -1 --size small --steps 1 | seed
bench throughput --scenario nothing | nothing
bench scaling --nodes 3 | nodes
bench scaling --nodes -100 | nodes
bench scaling --seed -1 --nodes 20 | seed
bench scaling --nodes 99999999999 | nodes
bench tradeoff nowhere | nowhere
bench tradeoff nowhere --budget nan | budget
bench tradeoff nowhere --budget 0 | budget
bench tradeoff nowhere --trajectories 0 | trajectories
bench dfg --case 3D-1 | 3D-1
bench dfg --refine -1 | refine
bench dfg --refine 9 | refine
bench dfg --dt 0 | dt
bench dfg --dt -0.1 | dt
bench dfg --dt nan | dt
bench dfg --ladder --case 2D-1 | ladder
bench generate --out data --only laser-heet | laser-heat
bench generate --out data --size huge | huge
bench generate --out data --truth exact | exact
bench report nowhere.json --out page.md | nowhere.json
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
train tiny --out run --model mgn --amp | mgn
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
bench export nowhere | nowhere
export run --out x.c --model universal | --model
export tiny --out x.c --allow-different | --allow-different
analyse run --data nowhere.h5 | nowhere.h5
analyse run --out tiny/problem.toml | problem.toml
show tiny/imported.h5 --out pictures --trajectory 9 | 9
show tiny/imported.h5 --out pictures --trajectory -1 | trajectory
show tiny/imported.h5 --out pictures --snapshots 0 | snapshots
show tiny/imported.h5 --out pictures --snapshots -4 | snapshots
show tiny/imported.h5 --out pictures --frames 0 | frames
show tiny/imported.h5 --out pictures --frames -1 | frames
show tiny/imported.h5 --out pictures --frames 1 --no-gif | frames
show tiny/imported.h5 --out tiny/problem.toml | problem.toml
show tiny/plate.msh --out pictures | plate.msh
score tiny/imported.h5 tiny/imported.h5 --split validation | validation
score tiny/imported.h5 tiny/imported.h5 --trajectory 0 | trajectories
score tiny/imported.h5 tiny/imported.h5 --trajectory -1 | trajectory
score tiny/imported.h5 tiny/imported.h5 --json tiny | tiny
bench tradeoff run --trajectories 0 | trajectories
bench model --run run --scenario laser-heat | --scenario
bench model --run run --steps -1 | steps
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
    Case("score tiny/imported.h5 tiny/imported.h5 --json x.json", ground="run", right=right_score),
    Case("rollout run --trajectory 0 --png 'a [b] $c %d.png'", ground="run", right=file_of("a [b] $c %d.png")),
    Case("rollout run --trajectory 0 --out 'x[/y].h5'", ground="run", right=file_of("x[/y].h5")),
    Case("check tiny --json 'ä ö/✓.json'", ground="project", right=file_of("ä ö/✓.json")),
    Case("check 'x[/y]'", does=lambda at: (at / "x[").mkdir() or (at / "tiny").rename(at / "x[/y]"), ground="project",
         right=file_of("x[/y]/imported.h5")),
    Case(f"reproduce {TAG} --out study --data data --plan", ground="study", right=lambda o: None),
]

CASES = NOTHING + OWN + RUN + WORKS


@pytest.mark.parametrize("case", parameters(CASES))
def test_case(case: Case, grounds: Callable[[str], Path], tmp_path: Path) -> None:
    face(case, grounds, tmp_path)
