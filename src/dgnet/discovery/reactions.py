"""What `identify` looks for: a reaction that is linear in few numbers theta, r(u) = sum over k of theta_k phi_k(u)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from scipy.interpolate import BSpline

from dgnet.discovery.least_squares import Prior
from dgnet.discovery.residuals import free_nodes
from dgnet.errors import InputError
from dgnet.models.dgnet import DGNet, Library, Reaction, ReactionTable
from dgnet.problems import Problem

if TYPE_CHECKING:
    from dgnet.data import Corpus

Tensor = torch.Tensor

_SPLINES = 24
_SURE = 2.0  # standard deviations by which a term must differ from zero


class Unknown(Protocol):
    """- `theta`: the numbers as the model has them, [K], in double precision
    - `prior`: how the fit is kept smooth
    - `unit`: what residuals are measured in, [F]
    """

    @property
    def theta(self) -> Tensor: ...
    @property
    def prior(self) -> Prior: ...
    @property
    def unit(self) -> Tensor: ...

    def put(self, theta: Tensor) -> None:
        """Set the model's numbers."""

    def slopes(self, u: Tensor) -> Tensor:
        """Derivatives [B, n, F, K] of r by theta at states [B, n, F]."""

    def settled(self, delta: Tensor, theta: Tensor) -> bool:
        """A change so small that the fit is over."""

    def conclude(self, covariance: Tensor, lumped: Tensor, base: Problem) -> None:
        """Store standard deviations: [K, K] by the noise, and [K], how much theta would change with a lumped mass."""


def unknown_of(model: DGNet, train: Corpus) -> Unknown:
    """What the model has to learn; refused where that is a network."""
    reaction = model.part(Reaction)
    if reaction is not None and reaction.library is not None:
        return Terms(model, reaction, reaction.library, train)
    if reaction is not None and reaction.table is not None:
        return Spline(model, reaction, reaction.table, train)
    raise InputError("only a DGNet whose learned reaction is a table or a sum of terms can be identified")


class Spline:
    """A reaction of one field: a cubic spline at the places of the model's table."""

    def __init__(self, model: DGNet, reaction: Reaction, table: ReactionTable, train: Corpus) -> None:
        self.model, self.reaction, self.table, self.train = model, reaction, table, train
        device = train.state.device
        self.basis, self.unit = splines(len(table.values)).to(device), torch.ones(1, device=device, dtype=torch.float64)
        count = self.basis.shape[1]
        self.prior, self.theta = Prior(count, (slice(0, count),)), torch.zeros(count, dtype=torch.float64, device=device)

    def put(self, theta: Tensor) -> None:
        self.table.values.copy_(self.basis @ theta)

    def slopes(self, u: Tensor) -> Tensor:
        return self.reaction.features(u, self.model.scales).double() @ self.basis

    def settled(self, delta: Tensor, theta: Tensor) -> bool:
        return float((self.basis @ delta).norm()) < 0.01 * float((self.basis @ theta).norm())

    def conclude(self, covariance: Tensor, lumped: Tensor, base: Problem) -> None:
        """The table's band and the share of the training states at each place."""
        model, table = self.model, self.table
        with torch.no_grad():
            middle = 0.0 if model.config.odd_reaction else model.mean
            u = table.where() * model.std.double() + (0.0 if model.config.odd_reaction else model.mean.double())
            phi = self.slopes(u[:, None])[:, 0]
            noise, mesh = (phi @ covariance * phi).sum(1), (phi @ lumped).square()
            wide = torch.nn.functional.pad(mesh[None], (4, 4), mode="replicate")[0]
            mesh = wide.unfold(0, 9, 1).mean(-1)  # where the change crosses zero, the mesh's error need not do so
            table.deviation.copy_((noise + mesh).clamp(min=0).sqrt())
            v = (self.train.state[..., 0].flatten(0, 1)[:, base.owner[free_nodes(base)[0]]] - middle) / model.std
            table.density.copy_(table.features(v.flatten()[:: max(1, v.numel() // 1_000_000)]).double().mean(0))


class Terms:
    """A reaction of several fields: the values of the library's active terms."""

    def __init__(self, model: DGNet, reaction: Reaction, library: Library, train: Corpus) -> None:
        self.model, self.reaction, self.library = model, reaction, library
        self.unit = train.spread.double()

    @property
    def at(self) -> Tensor:
        """The terms [K] among all, p F + f."""
        return self.library.active.flatten().nonzero()[:, 0]

    @property
    def theta(self) -> Tensor:
        return self.library.values.detach().flatten()[self.at].double()

    @property
    def prior(self) -> Prior:
        return Prior(len(self.at))

    @property
    def fresh(self) -> bool:
        """Nothing was ever fitted."""
        return not bool(self.library.values.any())

    def put(self, theta: Tensor) -> None:
        values = self.library.values
        values.copy_(torch.zeros_like(values).flatten().index_copy(0, self.at, theta.to(values)).view_as(values))

    def slopes(self, u: Tensor) -> Tensor:
        phi = self.reaction.features(u, self.model.scales)  # [B, n, F, P]: those of field f depend on values[:, f] alone
        fields = phi.shape[-2]
        term, own = self.at // fields, self.at % fields
        return phi[..., term] * torch.nn.functional.one_hot(own, fields).T.to(phi)

    def settled(self, delta: Tensor, theta: Tensor) -> bool:
        return float(delta.norm()) < 1e-3 * float(theta.norm())

    def drop(self, theta: Tensor, covariance: Tensor) -> bool:
        """Leave out the term that differs least from zero, where that is within its noise; tells whether there was one."""
        sure = theta.abs() / covariance.diagonal().clamp(min=1e-300).sqrt()
        if len(theta) < 2 or float(sure.min()) >= _SURE:
            return False
        with torch.no_grad():
            out = self.at[sure.argmin()]
            self.library.active.view(-1)[out] = 0.0
            self.library.values.view(-1)[out] = 0.0
        return True

    def conclude(self, covariance: Tensor, lumped: Tensor, base: Problem) -> None:
        found = (covariance.diagonal() + lumped.square()).clamp(min=0).sqrt()
        deviation = self.library.deviation
        deviation.copy_(torch.zeros_like(deviation).flatten().index_copy(0, self.at, found.to(deviation)).view_as(deviation))


def splines(places: int) -> Tensor:
    """[J, K]: cubic B-splines at J equidistant places."""
    count = max(4, min(_SPLINES, places))
    knots = np.arange(-3, count + 1) / (count - 3)
    return torch.tensor(BSpline.design_matrix(np.linspace(0, 1, places), knots, 3).toarray())
