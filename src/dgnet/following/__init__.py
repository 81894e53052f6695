"""A running part followed from its readings: the field with bands, a forecast, alarms."""

from dgnet.following.files import follow_from_files
from dgnet.following.follow import LEARN, Course, Field, Follower, Update, follow
from dgnet.following.stream import Row
from dgnet.following.unknown_inputs import Prior, described
from dgnet.following.watch import Event

__all__ = ["LEARN", "Course", "Event", "Field", "Follower", "Prior", "Row", "Update", "described", "follow", "follow_from_files"]
