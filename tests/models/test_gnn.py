"""Message passing by sorted edges: the same numbers as the textbook's sum over edges, and its derivative."""

import torch
from torch.nn import functional

from dgnet.mesh.box import box
from dgnet.models.gnn import MeshGraph, StateNet, _Gather
from dgnet.operators import Geometry


def graph_of(cells=(4, 3), dtype=torch.float64):
    return MeshGraph.of(Geometry.of(box(cells, perturb=0.2), dtype=dtype))


def test_reverse_edges_and_runs():
    e = graph_of((2, 2, 2)).incoming
    assert torch.equal(e.to[e.reverse], e.frm) and torch.equal(e.frm[e.reverse], e.to)
    assert torch.equal(e.reverse[e.reverse], torch.arange(len(e.to)))
    assert torch.equal(torch.repeat_interleave(torch.arange(len(e.degree)), e.ends.diff()), e.to)


def test_gather_has_the_derivative_of_the_plain_sum():
    graph = graph_of((2, 2))
    e, n = graph.incoming, len(graph.node)
    torch.manual_seed(0)
    a, b, c = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((n, 2, 3), (n, 2, 3), (len(e.to), 3)))
    plain = torch.zeros(n, 2, 3, dtype=torch.float64).index_add(0, e.to, functional.silu(a[e.to] + b[e.frm] + c[:, None]))
    torch.testing.assert_close(_Gather.apply(a, b, c, e), plain)
    assert torch.autograd.gradcheck(lambda *x: _Gather.apply(*x, e), (a, b, c))


def test_state_net_is_the_textbook_message_passing():
    """h_i + Update(h_i, sum_j Message(h_i, h_j, e_ij) / sqrt(degree)), edge by edge in the graph's own order."""
    graph = graph_of()
    torch.manual_seed(1)
    net = StateNet(2, 2, 1, 8, 2).double()
    for p in net.parameters():
        p.data += 0.1 * torch.randn_like(p)
    x = torch.randn(3, len(graph.node), 2, dtype=torch.float64)
    h, e, process = net.node(torch.cat([x, graph.node[:, -3::2].expand(3, -1, 2)], -1)), net.edge(graph.edge), net.process
    for receive, send, edge, message, update in zip(process.receive, process.send, process.edge, process.message, process.update):
        m = message(receive(h)[:, graph.to] + send(h)[:, graph.frm] + edge(e))
        total = torch.zeros_like(h).index_add(1, graph.to, m) / graph.incoming.degree.sqrt()[:, None]
        h = h + update(torch.cat([h, total], -1))
    expected = net.decode(h)
    torch.testing.assert_close(net(x, graph), expected)
    with torch.no_grad():  # prepared parts, and sums by runs as on CUDA
        torch.testing.assert_close(net(x, graph, net.edge_terms(graph)), expected)
        runs = torch.segment_reduce(m[0][graph.incoming.order], "sum", offsets=graph.incoming.ends, axis=0, unsafe=True)
        torch.testing.assert_close(runs, graph.incoming.total(m[0][graph.incoming.order].contiguous()))
