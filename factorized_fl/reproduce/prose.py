"""What the document says in words."""

CLOSE = 2.5  # points within which we call a number reproduced

RECONSTRUCTED = """*As reconstructed* has all departures of the authors' code in whatever is factorised (for beta, which
that code cannot run, those of Factorized-FL; for single clients those that concern them), pFedPara with a learning rate
of 0.01, and FedFOMO with [both of its open choices](methods.md#baselines-what-their-papers-leave-open), as these come
nearer to their published numbers in most settings; the other baselines are as printed. These variants were chosen with
the published numbers in view, not on validation images, so that a claim about the same numbers comes out as claimed is
weak evidence for it."""

INTRODUCTION = """# Reproduction of the paper

This page sets our numbers beside those of *Factorized-FL: Agnostic Personalized Federated Learning* (Jeong and Hwang,
2022), table by table and claim by claim. `ffl reproduce --show` writes it from the files under `results/paper/`, one
per cell and seed; `ffl reproduce WHAT` runs the cells that are missing."""

SETTING = """## Setting

Twenty clients, all of them in every round; ResNet-9; five local epochs per round, 50 rounds with CIFAR-10 and SVHN and
100 with the five domains of CIFAR-100; SGD with learning rate 1e-3, momentum 0.9, weight decay 1e-6, batches of 256,
the authors' augmentation. Train and test parts are merged, shuffled and cut 80/10/10. Non-IID shares are Dirichlet(0.5)
draws per class. After its local epochs every client's own model is tested on all test images of its data set or domain
under its own labels; we report the mean over clients after the last round. A classifier travels only where labels
agree. The methods are those that the papers print; [methods.md](methods.md) says what they leave open, what we took
there, and where the authors' code departs from their paper. Departures that could matter are options here, off unless a
row says so.

In the tables an entry reads *paper / ours (difference)*; ± is the standard deviation between seeds where there are
several. Convolutions are computed in bfloat16, those of ResNet-18 and of networks with two FC layers, which the fast
engine does not take, in TF32. Costs are gigabytes of a whole run: the paper's number, ours by the paper's formula
without the first download, and ours as really serialised. The formula counts what the paper's own numbers imply rather
than what travels: of dense methods all tensors, with the classifier; of Factorized-FL the classifier's u, but not the
norms that travel, too; of beta the entries of mu that survive the threshold. What beta really sends is more than
FedAvg's, for mu is pruned only when a model is tested. Where a check of costs says (A) and (B), B is the formula with
the first download."""

CHOICES = """## What was chosen, and how

What the paper leaves open was fixed by short runs scored on the *validation* images, by which no table is scored,
before the runs above, but for Factorized-Peers without settled statistics, which came first: one run per candidate,
first seed, best mean over clients. Clustered-FL's thresholds follow from a pilot that never splits. Two of these
choices say little: after so few rounds v is so much alike that no tau within the paper's range shuts anybody out, and
the candidates for epsilon lie within what seeds differ by. What is not listed has its preset's value; each result file
holds its complete configuration, newer ones also which engine ran it."""

SIMILARITY = """Of each client's three most similar clients, what share is of its own domain? Somebody without
knowledge would find 3/19 = 0.158. `factors` in the result files has every round. That u is alike for all says little:
its cosines are there in the first round already, before anything was shared, for u hardly leaves the start that all
have in common. Among directions this much alike it cannot matter whose are averaged."""

ARCHITECTURES = """The paper trains one client on CIFAR-10's first IID partition for 20 epochs. Ours has 2,400 images
drawn at random, as many as such a partition, and we show 20 and 250 epochs, as many as Stand-Alone has in Table 1; both
are of the same run, and the paper's number stands beside both. The accuracy of a client alone goes up and down by some
points from round to round, so that after 250 epochs is the mean of its last five rounds (230 to 250 epochs). ResNet-9
with one FC layer computes in bfloat16, everything else here in TF32."""

SPARSITY = """Sizes, in millions, count u, v and the entries of mu that survive the threshold lambda; the regular
network has 2.574. Eq. 6 has an L1 penalty on mu; in the authors' code it is computed on detached tensors, has no
gradient, and only the threshold is left. The paper's cost of beta, 18.25 GB, points there, too: 20 clients, 50 rounds,
two ways and 4 bytes times 2.283 million, a single client's size at lambda = 0.0005, are 18.26 GB."""

WEIGHTS = """What weight clients gave to themselves and to the others of their domain when models were mixed, means over
clients, rounds and seeds; with equal weights for all it would be 0.050 and 0.150. Near 0.050 to oneself it is a plain
average, near 1 training alone; what matching does could show in between only."""

HETEROGENEITY = """Equally initialised ResNet-9s are trained on MNIST partition 1 and on other data. A distance is that
of two updates since the start, each scaled to length 1: 0 for the same direction, 1.414 for unrelated ones. The paper
states neither sizes nor lengths; we take 2,400 images each and no augmentation. For the *accuracy of averages* two
models are averaged after every third of 30 epochs, with or without their classifiers, and go on from there; it is that
of the average on partition 1, the mean over the ten times and the last of them. Where u is said to come closer it is
averaged after every epoch, and the updates of one epoch are compared. All is of one seed. The paper's figures show no
numbers."""

BEYOND = """Factorized-Peers ([fingerprints.md](fingerprints.md)) shares what beta shares, with those whose images look
like one's own, and measures BatchNorm's statistics anew on a client's plain training images after its local training
("settled"); columns marked so show what that alone does for others, one what is left without it. The harder settings
are variants of the five domains: 1, 2, 3, 6 and 8 clients per domain; Dirichlet(0.5) shares of the classes inside each
domain; one client whose training labels are drawn at random, which counts in that row's mean."""

HELPED = """What its clients gained, in points, each against the same client of the same seed; a client with random
labels does not count. Only what is over Stand-Alone with settled statistics compares like with like; the other rows
hold what settling alone would have given. *Own-domain weight* is what a client gives to itself and to others of its
domain when models are mixed, the mean over clients and rounds."""

DIFFERENCES = """## Where we differ by more than {close} points

Means over all domains count here, and single clients after 250 epochs. What can be switched on:

- Factorized-FL and its beta: the departures of the authors' code, all together and one by one; for beta, whose code
  cannot be reached, also all but the classifier that is reset; for Factorized-FL also the code's epsilon alone. For the
  factorised networks of a single client those that concern it, together.
- Regular networks with two FC layers: the width between them, which the paper does not state (256 of ResNet-9, 512 of
  ResNet-18 in ours).
- FedFOMO: the two choices that its sources leave open ([methods.md](methods.md)). Per-FedAvg, on the domains: what
  PFLlib does differently, and its own paper's test.
- pFedPara, FedFOMO, and Per-FedAvg on the domains: a learning rate ten times as large, or five.
- pFedPara, where labels agree: a classifier that is dense and travels whole, instead of one of low rank.
- Clustered-FL, where clients hold unequally many images: that they count by these.
- Where clients hold unequal shares, other draws of these: they stand [apart](#other-draws), for the authors drew theirs
  without a seed.
- beta on the domains: TF32 or float32 convolutions instead of bfloat16 ones, which are our own departure.

The paper says that it adjusted hyper-parameters of baselines, but not which; the authors published no code for them, so
for the others there is nothing to switch on. {run} of {all} such runs were made; `ffl reproduce departures --list`
names the others. Of the means of each method that were run: how many are *far*, how many of these were *looked into* by
at least one such run, how many one of them *brought near*, and in points how far those looked into are from the paper,
as they stand and in the run that comes nearest."""

ONE_BY_ONE = f"""One by one; *comes within {CLOSE} points with* names the runs that agree with the published number, and
*not run* means that none was tried yet; where shares are non-IID see also [other draws](#other-draws):"""

LISTENED = """Until which round some client of FedFOMO gave a weight to another's model, and in how many of their rounds
clients first went back to where the last had begun:"""

DRAWS = """### Other draws

The authors drew their non-IID shares without a seed, and much hangs on the draw. Here are the same runs with other
ones, which also part training from test images otherwise. They count nowhere above as an explanation. Seed 4 was run
first because we expected its CIFAR-10 shares to be the easiest of the three."""

LEFT_OUT = """What would other draws bring? To a good part a client's accuracy follows from what it holds: from how many
images (their logarithm) and how even they are (the mean over classes of log(1 + percent of its images)). A plane
through a method's measured clients over these two predicts the mean over clients for any draw, without training
(`ffl reproduce draws`); it knows nothing of what clients learn from each other's shares. How far it is off is seen with
draws that it was not fitted to. These are few, the two errors of a pair mirror each other, and of three sets of
measures that we tried this one was off the least, so it may flatter itself:"""

PREDICTED = """Each published mean beside what {draws} draws would bring, with a standard deviation that has both the
spread of these predictions and that error. *Poorer* is the share of draws that promise less than that of seed 1, which
our tables have; *off* says by how many standard deviations the published number is away, if it is of a single draw (the
paper does not say whether its three trials had three). A draw moves all methods together, and the paper has one for
all of a setting: so it may explain why Stand-Alone is off, but hardly a method's difference from Stand-Alone, which
stands in the last column."""

CHANCE = """### Chance

How much of a difference is chance? The paper prints two of its single-client experiments twice, in figures 8 h and 8 i:
61.29 and 61.95 for the regular network, 62.34 and 63.12 for the factorised one. For Stand-Alone permuted labels are
other names and nothing else, so its columns with and without them measure the same, by the paper on the same shares:"""

BEST_ROUNDS = f"""The paper does not say whether its numbers are of the last round. Ours are; if each client's best one
counted instead, which the test images would choose, so many means would be within {CLOSE} points of the paper's:"""

CLAIMS = """## Claims

What the paper says, one by one, and the verdict that follows from our runs by
[these rules](#how-claims-are-judged), with methods as printed; the claims about u and v also with departures, which are
named. The last column says of how many checks the published numbers themselves come out as claimed, whatever their
spread."""

RULES = """## How claims are judged

A check compares two cells by the mean difference of their accuracies, paired by seed and client. Its standard error has
two parts. One is the largest of four: from all pairs as if they were independent; between the means of the clients of
one domain and seed, who share their test images; between the seeds' means; and what differences between cells vary by
from seed to seed, {between_seeds:.2f} points pooled over all pairs that have several, or more where one of the two is
known to vary more, divided by the root of the number of seeds. The other part is the standard deviation of the
difference over the last ten rounds, since one round is compared with one. (With a single client the error comes from
the size of its test and the ups and downs of its last five rounds, or of those around the 20th epoch.) A check comes
out as claimed, or not, if the difference exceeds two standard errors; else it is undecided. "Consistent" and
"competitive" mean a loss of no more than one point, a sharp drop five points or more; sizes must agree within 5%, costs
within 2%. v groups clients by domain if most of a client's nearest are of its own; that v is more alike within a
domain, or that u's nearest are of one's own, is beyond chance if less than 5% of 2,000 random deals of the domains have
as much of it (p). The faster of two methods is the first to 70%, 80% and 90% of the lower final accuracy. Other checks
of distances, similarities and bytes have no error. Single clients are compared after 250 epochs and after the 20 that
the paper states, both of the same run. Beside our difference stands that of the published numbers.

A claim *holds* if all checks that were run come out as claimed and these are at least half of all, and *in part* if at
least as many do as come out contrary; else it *does not hold*, or is *undecided* if no check decides. A claim that says
"every" or "best" does not hold as soon as one check comes out contrary, and is undecided while one is.

What this cannot say: clients of one seed share initial weights and, with CIFAR-10 and SVHN, all test images, and two
runs of one seed on a GPU can end more than a point apart ([performance.md](performance.md#right)). Nothing was
corrected for the number of checks: if errors were known exactly, of twenty differences that are none one would exceed
two of them by chance. Checks are not independent: where Clustered-FL never split it repeats FedAvg, with equal shares
bit by bit, and a baseline that we do not reproduce counts like any other."""

REJUDGED = """The same checks with the runs as reconstructed in the place of those as printed; what was not run so
counts as not run. Most have one seed."""

SUPPOSED = """What we suppose about how the published numbers came about, judged by the same rules:"""
