"""From sensors to answers: kernels of sensors, recovery of what is unknown, where to measure, a part that is followed."""

from dgnet.sensors.coefficients import Coefficients, recover_coefficients
from dgnet.sensors.design import Designed, Margin, Met, Target, design
from dgnet.sensors.design_spots import FreeSpot
from dgnet.sensors.drives import Prior
from dgnet.sensors.follow import Course, Field, Follower, Update, follow
from dgnet.sensors.kernels import Kernels, kernels
from dgnet.sensors.place import Placement, place
from dgnet.sensors.readings import Readings, read_readings, read_sensors
from dgnet.sensors.recover import Recovered, read_spots, recover
from dgnet.sensors.sensor import Flux, Patch, Point, Sensor
from dgnet.sensors.tracks import Track, recover_track
from dgnet.sensors.watch import Event

__all__ = ["Coefficients", "Course", "Designed", "Event", "Field", "Flux", "Follower", "FreeSpot", "Kernels", "Margin", "Met",
           "Patch", "Placement", "Point", "Prior", "Readings", "Recovered", "Sensor", "Target", "Track", "Update", "design",
           "follow", "kernels", "place", "read_readings", "read_sensors", "read_spots", "recover", "recover_coefficients",
           "recover_track"]
