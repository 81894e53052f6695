"""The public names and where they live: the one list of them, read by type checkers and by `dgnet.__getattr__`."""

import dgnet.mesh as _mesh
import dgnet.prediction.to_files as _to_files
import dgnet.projects.project as _project
import dgnet.training.own as _own
from dgnet.data import Corpus as Corpus
from dgnet.data import Dataset as Dataset
from dgnet.designs.design import design as design
from dgnet.errors import InputError as InputError
from dgnet.errors import SolveError as SolveError
from dgnet.following.follow import follow as follow
from dgnet.inverse.kernels import kernels as kernels
from dgnet.inverse.place import place as place
from dgnet.inverse.recover import recover as recover
from dgnet.mesh import Mesh as Mesh
from dgnet.mesh import box as box
from dgnet.mesh import shipped as shipped
from dgnet.models import Classical as Classical
from dgnet.models import Pause as Pause
from dgnet.models import rollout as rollout
from dgnet.models.dgnet import DGNet as DGNet
from dgnet.models.dgnet import DGNetConfig as DGNetConfig
from dgnet.models.universal import Universal as Universal
from dgnet.prediction.choose import simulate as simulate
from dgnet.problems import PDE as PDE
from dgnet.problems import ByRegion as ByRegion
from dgnet.problems import Curve as Curve
from dgnet.problems import Dirichlet as Dirichlet
from dgnet.problems import FunctionSource as FunctionSource
from dgnet.problems import Neumann as Neumann
from dgnet.problems import Periodic as Periodic
from dgnet.problems import Problem as Problem
from dgnet.problems import Robin as Robin
from dgnet.problems import Scaled as Scaled
from dgnet.problems import SpotTable as SpotTable
from dgnet.problems import TimeTable as TimeTable
from dgnet.problems import step_average as step_average
from dgnet.problems import step_moments as step_moments
from dgnet.problems.sight import doubts as doubts
from dgnet.projects.project import project as project
from dgnet.projects.project import trajectory as trajectory
from dgnet.scoring.judge import judge as judge
from dgnet.scoring.judge import predict as predict
from dgnet.scoring.metrics import score as score
from dgnet.stepping import GreenSolver as GreenSolver
from dgnet.stepping import steady as steady
from dgnet.training import Recipe as Recipe
from dgnet.training import Stage as Stage
from dgnet.training import fit as fit
from dgnet.training import uncertainty as uncertainty
from dgnet.training.evaluate import evaluate as evaluate
from dgnet.training.run import Run as Run

load_mesh = _mesh.load
load_project = _project.load
load_run = Run.open
rollout_run = _to_files.predict_to_files
save_mesh = _mesh.save
train = _own.train_project

__version__: str
