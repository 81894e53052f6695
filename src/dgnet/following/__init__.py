"""A running part followed from its readings: the field with bands, a forecast, alarms."""

from dgnet.following.follow import Course, Field, Follower, Update, follow
from dgnet.following.unknown_inputs import Prior
from dgnet.following.watch import Event

__all__ = ["Course", "Event", "Field", "Follower", "Prior", "Update", "follow"]
