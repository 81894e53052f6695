"""From sensors to answers: kernels of sensors, recovery of what is unknown, where to measure."""

from dgnet.inverse.coefficients import COEFFICIENTS, Coefficients, recover_coefficients
from dgnet.inverse.files import place_from_files, problem_of, read_start, recover_from_files
from dgnet.inverse.finer import FLOOR, MOST, Finer, Gap, anywhere
from dgnet.inverse.kernels import Kernels, is_linear, kernels, refuse_nonlinear
from dgnet.inverse.place import Placement, place, spread_out
from dgnet.inverse.posterior import Choice, Spread, Unknown, infer, strongest
from dgnet.inverse.priors import DECAY
from dgnet.inverse.readings import (
    NOTHING,
    Readings,
    checked_header,
    cleaned,
    kelvin_shift,
    read_readings,
    read_sensors,
    shift_note,
    steps_until,
)
from dgnet.inverse.recover import Recovered, recover
from dgnet.inverse.rollouts import Known, Measured, Rollout, refuse_several_fields, summed
from dgnet.inverse.run_from_readings import train_from_tables
from dgnet.inverse.sensor import (
    SENSORS,
    Flux,
    Patch,
    Point,
    Sensor,
    Sensors,
    called,
    curved_rows,
    delays,
    first_state,
    named,
    rows,
)
from dgnet.inverse.tracks import TRACKS, Track, recover_track
from dgnet.inverse.unknowns import (
    KINDS,
    Kind,
    checked_spots,
    linear_kind,
    loaded_by,
    read_spots,
    refuse_missed,
    taken_shapes,
)

__all__ = ["COEFFICIENTS", "DECAY", "FLOOR", "KINDS", "MOST", "NOTHING", "SENSORS", "TRACKS", "Choice", "Coefficients", "Finer",
           "Flux", "Gap", "Kernels", "Kind", "Known", "Measured", "Patch", "Placement", "Point", "Readings", "Recovered",
           "Rollout", "Sensor", "Sensors", "Spread", "Track", "Unknown", "anywhere", "called", "checked_header", "checked_spots",
           "cleaned", "curved_rows", "delays", "first_state", "infer", "is_linear", "kelvin_shift", "kernels", "linear_kind",
           "loaded_by", "named", "place", "place_from_files", "problem_of", "read_readings", "read_sensors", "read_spots",
           "read_start", "recover", "recover_coefficients", "recover_from_files", "recover_track", "refuse_missed",
           "refuse_nonlinear", "refuse_several_fields", "rows", "shift_note", "spread_out", "steps_until", "strongest", "summed",
           "taken_shapes", "train_from_tables"]
