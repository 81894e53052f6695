import json

import pytest

from dgnet import cli


def test_models_are_listed_with_their_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["dgnet", "models", "--json", str(tmp_path / "models.json")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    rows = {r["name"]: r["parameters"] for r in json.loads((tmp_path / "models.json").read_text())}
    assert set(rows) == {"deeponet", "mgn", "mp-pde", "beno", "phympgn", "transolver", "amg", "singer", "pod", "opinf", "dgnet",
                         "dgnet-paper", "universal", "universal-tuned", "classical", "classical-p2"}
    assert all(n == 0 if name.startswith("classical") or name == "universal" else n > 20_000 for name, n in rows.items())
