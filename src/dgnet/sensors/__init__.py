"""From sensors to answers: kernels of sensors, recovery of what is unknown, where to measure."""

from dgnet.sensors.coefficients import Coefficients, recover_coefficients
from dgnet.sensors.design import Designed, Margin, Met, Target, design
from dgnet.sensors.design_spots import FreeSpot
from dgnet.sensors.kernels import Kernels, kernels
from dgnet.sensors.place import Placement, place
from dgnet.sensors.readings import Readings, read_readings, read_sensors
from dgnet.sensors.recover import Recovered, read_spots, recover
from dgnet.sensors.sensor import Flux, Patch, Point, Sensor
from dgnet.sensors.tracks import Track, recover_track

__all__ = ["Coefficients", "Designed", "Flux", "FreeSpot", "Kernels", "Margin", "Met", "Patch", "Placement", "Point", "Readings",
           "Recovered", "Sensor", "Target", "Track", "design", "kernels", "place", "read_readings", "read_sensors", "read_spots",
           "recover", "recover_coefficients", "recover_track"]
