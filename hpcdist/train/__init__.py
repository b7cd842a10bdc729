"""What jobs are made of: the state of a run, its loop, its numbers."""

from hpcdist.train.curve import write_png, write_svg
from hpcdist.train.ending import told_once
from hpcdist.train.folder import open_folder
from hpcdist.train.loop import Loop, Samples, Strategy
from hpcdist.train.metrics import Metrics
from hpcdist.train.options import option, parse_options
from hpcdist.train.progress import Progress
from hpcdist.train.state import TrainState, fixed_bits

__all__ = [
    "Loop",
    "Metrics",
    "Progress",
    "Samples",
    "Strategy",
    "TrainState",
    "fixed_bits",
    "open_folder",
    "option",
    "parse_options",
    "told_once",
    "write_png",
    "write_svg",
]
