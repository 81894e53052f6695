from benchmarks.commands import app
from dgnet.cli import shell

shell.main(app)
