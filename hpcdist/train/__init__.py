"""What jobs are made of: the state of a run, its loop, its numbers."""

from hpcdist.train.curve import write_png, write_svg
from hpcdist.train.loop import Loop, Strategy
from hpcdist.train.metrics import Metrics
from hpcdist.train.progress import Progress
from hpcdist.train.state import TrainState

__all__ = ["Loop", "Metrics", "Progress", "Strategy", "TrainState", "write_png", "write_svg"]
