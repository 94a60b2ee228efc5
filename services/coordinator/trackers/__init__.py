"""Where a run's metrics go besides its folder: experiment trackers, behind one protocol."""

from services.coordinator.trackers.tracker import Tracker, TrackerThread
from services.coordinator.trackers.trackers import Trackers

__all__ = ["Tracker", "TrackerThread", "Trackers"]
