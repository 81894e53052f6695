"""From sensors to answers: kernels of sensors, recovery of what is unknown, where to measure."""

from dgnet.sensors.kernels import Kernels, kernels
from dgnet.sensors.sensor import Flux, Patch, Point, Sensor

__all__ = ["Flux", "Kernels", "Patch", "Point", "Sensor", "kernels"]
