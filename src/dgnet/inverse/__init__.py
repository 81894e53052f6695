"""From sensors to answers: kernels of sensors, recovery of what is unknown, where to measure."""

from dgnet.inverse.coefficients import Coefficients, recover_coefficients
from dgnet.inverse.kernels import Kernels, kernels
from dgnet.inverse.place import Placement, place
from dgnet.inverse.readings import Readings, read_readings, read_sensors
from dgnet.inverse.recover import Recovered, recover
from dgnet.inverse.sensor import Flux, Patch, Point, Sensor
from dgnet.inverse.tracks import Track, recover_track
from dgnet.inverse.unknowns import read_spots

__all__ = ["Coefficients", "Flux", "Kernels", "Patch", "Placement", "Point", "Readings", "Recovered", "Sensor", "Track", "kernels",
           "place", "read_readings", "read_sensors", "read_spots", "recover", "recover_coefficients", "recover_track"]
