"""Thresholds of the findings, and why each is what it is.

They are chosen so that a healthy run has no finding: where noise alone could cross one, it stands further out.
"""

from __future__ import annotations

# -- skips

SKIP_RATE_WARNING = 0.01
"""Share of the steps that bad batches (or unexplained overflows) may cost before it is a warning. A well-kept float16
run loses one step in 2,000 to each growth; ten times that is worth a look, and below it nobody would notice."""

SKIP_RATE_LEAST = 3
"""Fewer skips than this are single events, whatever share of a short run they are."""

SKIPPED_MOST, SKIPPED_STEPS = 0.5, 32
"""Share of at least so many steps that were skipped, whatever for: a scale that finds its height takes twenty or so."""

SCHEDULE_DRIFT_INFO, SCHEDULE_DRIFT_WARNING = 0.02, 0.05
"""Share of the steps by which the learning-rate schedule ran ahead of the updates. Many loops count attempts, and at
one step in a hundred nobody sees it; at one in twenty, a warm-up can end before the optimizer has warmed up."""

OUTLYING_LOSS = 3.0
"""How many times the median of a step's other losses one micro-batch's loss has to be to be named in a skip. Losses
of a model's batches seldom differ by a factor of two; a spoiled one does by far more."""

# -- ranks

RANK_LOST_SECONDS = 30.0
"""A rank that recorded nothing for so long while another went on is gone: records go out every two seconds, and ranks
that train together wait for each other."""

REPLICAS_APART = 1e-4
"""Relative difference of the norms of what should be the same parameters. Equal kernels give equal bits; other hardware
may round apart by 1e-6."""

# -- clipping

CLIPPED_ALWAYS = 0.95
"""From this share of clipped steps on, the threshold sets the step size and clips no outliers."""

CLIPPED_NEVER = 0.0001
"""Down to this share, the threshold guards against something that does not come."""

CLIPPED_TO = 0.1
"""Share of the gradients, down to which a clip takes part in steps that are tiny against the parameters."""

CLIP_STEPS = 100
"""Fewer steps say nothing about clipping."""

# -- loss and norm

BASELINE = 64
"""Unskipped steps that "usual" is taken from: enough for a median that single batches do not move, few enough to
follow the fast fall of a loss at the start."""

SPIKE_DEVIATIONS, SPIKE_ALONE_DEVIATIONS, SPIKE_SHARE = 8.0, 16.0, 0.25
"""A loss spike lies this many robust standard deviations above the usual loss, and this share of it. Noise of a normal
kind never passes 8, that of small batches (with tails as exp(-|x|)) once in 10,000 steps: so a step alone has to pass
16, and 8 is enough where `SPIKE_STEPS` of 8 steps do. The share keeps a loss that hardly varies from having spikes."""

SPIKE_STEPS = 3
"""Of 8 in a row. Three independent passages of 8 deviations within 8 steps do not happen by chance."""

BACK_DEVIATIONS, BACK_SHARE = 3.0, 0.1
"""The loss is back when the median of the next `BASELINE` steps is this near to what it was before."""

SPIKES_WARNING, SPIKES_RATE = 3, 1 / 1000
"""Spikes that took more than `ONE_STEP` to come back, and their share of the steps, from which on they are a warning.
Where noise has heavy tails, single steps leave the usual at any rate, and are back with the next."""

ONE_STEP = 2
"""Steps within which a spike is over that a single batch made: its own, and one more."""

SLOW_BACK = 8
"""Steps in a row that a loss has to stay high to be a warning though it came back: no batch does that, and no noise.
Something else was learned first: other data, other parameters."""

FAR_DEVIATIONS, FAR_TIMES = 64.0, 10.0
"""Robust deviations above the usual, and times the usual itself, that a spike lies far beyond anything usual. Only one
that lasted more than `ONE_STEP`: the highest of many heavy-tailed values lies as far, for a step."""

RAN_AWAY, RAN_AWAY_STEPS = 100.0, 3
"""Times the usual that the loss or a gradient norm was at one of so many steps right before a loss that is not finite:
training ran away. A single batch is as high now and then; right before such a step it is no chance."""

NORM_ROSE = 3.0
"""A gradient norm this many times the usual one, within `BEFORE` steps, counts as what preceded a spike."""

NORM_EXPLODED = 10.0
"""A gradient norm this many times the usual one is no noise: ordinary batches stay within a factor of three."""

BEFORE = 32
"""How many steps back a cause is looked for. As many as the flight recorder keeps."""

WINDOW_LEAST = 8
"""Fewer values than this among `BEFORE` steps do not say what a quantity did there: it counts as not recorded."""

LED_DEVIATIONS = 4.0
"""Robust deviations from its usual from which on a quantity is named as what led to a step. Noise of a normal kind is
there once in 16,000 values."""

LR_ROSE = 1.5
"""A learning rate that grew by half within `BEFORE` steps may be what a spike comes from (a warm-up too short)."""

# -- tensors

TENSOR_ROWS = 16
"""Rows of the tables of tensors that a verdict on a tensor is drawn from, evenly over the part of the run in question.
More would cost time on long runs and say the same."""

TENSOR_ROWS_LEAST = 4
"""A tensor is judged by at least this many rows: at the default interval, 200 steps."""

TENSOR_EXPLODED = 100.0
"""Growth of one tensor's gradient norm, from the middle half of the run to its last quarter, beyond which it runs
away. Norms drift by factors of two to ten over a healthy run; no scale policy bears a factor of a hundred for long."""

GRADIENT_FADED = 1e-5
"""Share of its earlier gradient norm, down to which a tensor's has vanished, where others' has not. Norms of single
tensors drift by two or three orders of magnitude against each other at the most."""

MOVED_TIMES, MOVED_ROUNDING = 2.0, 1e-5
"""Times what weight decay takes, and share of the norm, beyond which a tensor whose gradient was zero moves: it is
trained at steps that no table is of. Float32 sums of squares round at 1e-7."""

UPDATE_RATIO_HIGH, UPDATE_RATIO_LOW = 0.3, 1e-6
"""Usual length of a step relative to the parameter's own. Around 1e-3 is healthy. A third of the parameter rewritten
in each step is noise, not training; below 1e-6 a float32 parameter is within ten roundings (2**-24) of not moving."""

ROUNDING_GRADIENT = 1e-5
"""Share of the largest tensor's gradient norm, down to which a vector's gradient may be nothing but the rounding of
sums that cancel (float32 rounds at 6e-8, over a batch of some thousand terms)."""

LR_IDLE = 0.1
"""Steps whose learning rate is below this share of the highest are left out of what is too small: a schedule's end."""

NAMES_SHOWN = 3
"""Of tensors in a sentence. More are counted: nobody reads a list of 200 names."""

# -- float16

UNDERFLOW_SHARE = 0.05
"""Share of the gradient's elements (of those that are not zero) that float16 flushes, or holds at the lowest three of
its binades, where one or two bits are left. The small elements add little to a step; at one in twenty, whole layers
are usually among them."""

CURED_SHARE = 0.01
"""At the scale that cures an underflow no more than this share is lost."""

EDGE_BINADES = 3
"""The subnormal numbers of float16 from 2**-24 up to 2**-21 hold one, two, three bits. A float16 backward has rounded
what lies below to zero before anybody sees it, so the mass at this edge shows what is cut off."""

HEADROOM_LOST = 4.0
"""Doublings by which the largest gradient grew (from the middle of the run to its last quarter) while the scale came
down for it. Sixteen-fold is beyond what batches differ by, and a third of the way from 2**16 to a scale of 1."""

SCALE_FLOOR = 1.0
"""A scale below 1 shrinks the gradients: float16's small numbers are lost for its large ones."""

NOT_FLOAT16_SHARE = 0.5
"""Share of the tensors whose finite gradient would not have fitted float16 at the scale in use, from which on the
gradients were plainly not computed in float16, and the scaler has nothing to do."""

SPOILED_NORMS = 4.0
"""Right after a growth: how many times their usual length the finite gradients have to be for the batch to be the
suspect and not the scale. A scale doubled makes gradients overflow that fitted within a factor of two; four times the
usual length would have overflowed before the growth as well. The same at a scale that had held: those of good batches
are three times as long in one step of some hundred."""

OVERFLOWING_NORMS = 2.0
"""Times their usual length that the finite gradients have, from which on NaN in others may well be an overflow's."""

SPOILED_NORMS_ALONE, LOSS_AS_ANY = 10.0, 3.0
"""Likewise, where the loss is no more than so many robust deviations above the recent ones: nothing else speaks
against the batch then. Small batches whose samples are alike had gradients six times as long, once in 400 steps."""

EDGE_DEVIATIONS, EDGE_PROBED = 5.0, 8.0
"""Robust deviations above the recent losses up to which an overflow of a scale that had held is no bad batch's doing:
where nothing is known of the next higher scale, and where that one had been tried in vain. Good batches pass 3 once in
700, and those whose gradients are longest, which overflow first, oftener."""

RECURS, RECURS_EXPECTED = 2, 0.1
"""Steps that were taken with a loss, or a norm, as high for their time as that of a step that overflowed, from which on
such batches belong to the data; and how many of them their tail lets expect. A corrupt batch is the only one."""

TAIL_VALUES, TAIL_LEAST = 10, 100
"""The highest values, of at least so many, that a tail is drawn from."""

# -- what is not finite

BACKWARD_LARGEST = 65504 / 16
"""The largest finite gradient, times the loss scale, up to which an overflow of float16 is ruled out: what overflows
leaves others within a factor of a few below the end of the format. Four doublings below it, nothing was near."""

BACKWARD_LARGEST_OF_ALL = 65504 / 4
"""Likewise, where every gradient holds NaN and none inf, at a scale that had held: two doublings are enough."""

BACKWARD_LARGEST_OF_SOME = 65504 / 1.5
"""Likewise, where NaN is in two tensors or more, none holds inf, and some were spared. Of 3,100 overflows of seven
models none left that: first scales of 2^30, scales that had just grown, batches that counted up to 16 times."""

EITHER_SHARE = 0.85
"""Share of the recent losses that lie below that of a step, from which on an overflow is as likely as NaN of backward's
own, where the gradients do not say. Batches with NaN of their own have any loss, those that overflow the highest."""

SCALE_FALLEN = 16.0
"""A scale so many times below one that had held is no probe's and no batch's doing: gradients have grown, or one
batch in a few overflows. Batches differ by a factor of two to four."""

SCALE_HELD = 32
"""Unskipped steps after which a scale counts as one that had held, where others are compared with it."""

HIGHEST_HELD = 256
"""Unskipped steps at a scale that is the highest so far, up to which the batch with the longest gradients of all may be
what it lacks the headroom for: in good runs they came 10 to 170 steps after its growth."""

EXTREME_SCALE = 2.0**48
"""Above it the largest gradient that fits float16 is 2e-10, far below what any loss's own gradient is: the gradients
are not float16, or the scale was set by mistake."""

# -- levels

ROSE_WINDOW, ROSE_WINDOWS, ROSE_LEAST = 128, 8, 16
"""Losses of which a level is the median: it varies by a tenth of the noise of a single loss. A short run has as many of
its own that eight windows fit, and not fewer than 16 to a window."""

ROSE_SHARE, ROSE_NOISE = 0.1, 4.0
"""The level has to be this share above its lowest, and so many robust deviations of what levels differ by from one
window to the next. Losses that wander on their own differ as much between windows, and do not count as risen."""

ADDED_WITHIN = (0.75, 1.33)
"""How near the growth of a sum of losses has to be to that of the number of its terms."""

LEVEL_TIMES, LEVEL_STEPS = 4.0, 96
"""A gradient norm that from one step to the next is so many times as long (or as short) and stays so for as many steps.
Norms drift over a run by more than that, but not within a step; batches differ by a factor of two to four, and not for
good."""

ZERO_STEPS, ZERO_SHARE = 32, 0.25
"""Steps up to the end of a run, and of one of several optimizers share of it, whose gradients are all exactly 0 though
the loss is not."""

VANISHED = 0.01
"""A norm of parameters that fell to this share of what it was holds nothing of what was learned."""

WEIGHTS_GREW = 8.0
"""Growth of the norm of all parameters from a run's second quarter to its last. After the first quarter, norms grow by
a few times at most, and ever more slowly."""

REWRITTEN, GREW_AT_ONCE, STARTED_SMALL, LEARNED = 0.1, 3.0, 0.05, 0.1
"""A step as long as this share of the parameters' norm, which grew so many times within the first quarter of the
measurements; half as long where they grew twice as much. A first step of Adam at a usual rate is 0.001 to 0.05 of it.
Of parameters that were smaller than the third share of what the first step made of them nothing is said: a layer that
starts at zero has to grow. Nor where the loss came down to the last share of what it was: targets in the hundreds ask
for such parameters."""

HALF_LOST = 0.5
"""Share of the length that Adam gives a step, below which what arrives in a 16-bit parameter was rounded away."""

# -- learning rates

LR_OUTLIER, LR_OUTLIER_STEPS = 5.0, 8
"""A learning rate so many times that of the step before, and back within so many steps. No schedule does that; a warm
restart jumps further, and stays."""

LR_JUMP, LR_JUMP_STEPS = 10.0, 32
"""A learning rate so many times all rates before, that stays for as many steps. Warm restarts go back to what was."""

LR_ZERO_STEPS = 16
"""Steps with a learning rate of 0. Schedules begin or end with one or two; sixteen are no rounding of a schedule."""

LR_NOTHING, LR_NOTHING_SHARE = 1e-5, 10
"""Share of the highest learning rate down to which nothing moves: steps are about 1e-3 of their parameter, and float32
rounds at 6e-8 of it. A cosine is there for the last 0.2 % of its steps; a tenth of a run is no schedule's end."""

CYCLE_STEPS, CYCLES_LEAST = 64, 8
"""Steps within which a learning rate comes back, so many times. Cycles that are meant take an epoch or a few."""

DECAY_SHARE = 0.02
"""Share of the parameters that weight decay takes in a step, from which on half of what was learned is gone within 35
steps. AdamW at 0.001 with 0.1 takes 0.0001, Muon at 0.02 with 0.1 takes 0.002."""

RESTART_STEPS = 8
"""Steps in a row whose learning rates are those of the run's beginning, and not that of before the resume."""

FLOAT8_ROWS = 64
"""Tables that are looked at for what casts to float8 lose."""

FLOAT8_ROWS_LEAST = 4
"""Tables that a tensor has to be in: fewer have no usual value."""

FLOAT8_SPIKE = 100.0
"""Times its usual value, from which on a tensor's largest magnitude is a spike: 6.6 of the 17 binades that e4m3 has are
lost to the other elements then."""

FLOAT8_SPIKE_FLUSHED = 0.002
"""Threshold of the share of elements that becomes zero at a spike. Of normally distributed ones a scale that fits
flushes 2e-6, one that a spike of 1,000 times made small 0.2 %."""

FLOAT8_FLUSHED = 0.05
"""Share of elements that becomes zero at half of the steps: less is usual behind a ReLU's small values."""

FLOAT8_SATURATED = 0.001
"""Share of elements beyond the maximum at half of the steps. By its own largest magnitude no tensor has any."""
