import json

import pytest

from dgnet import cli


def test_models_are_listed_with_their_parameters(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["dgnet", "models", "--json", str(tmp_path / "models.json")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    rows = {r["name"]: r["parameters"] for r in json.loads((tmp_path / "models.json").read_text())}
    assert {"deeponet", "mgn", "pod", "dgnet", "dgnet-paper", "universal", "universal-tuned", "classical"} <= set(rows)
    still = {name for name in rows if name.startswith("classical") or (name.startswith("universal") and name != "universal-tuned")}
    assert all(n == 0 if name in still else n > 20_000 for name, n in rows.items())
