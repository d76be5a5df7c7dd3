"""Language modelling: what a batch and an evaluation window are made of, bytes or tokens, from any source."""

import io
import json
import os
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from posenc_train.config import UserError
from posenc_train.tasks import tables, tokens
from posenc_train.tasks.text import Text
