"""What the document says in words."""

CLOSE = 2.5  # points within which we call a number reproduced

INTRODUCTION = """# Reproduction of the paper

This page sets our numbers beside those of *Factorized-FL: Agnostic Personalized Federated Learning* (Jeong and Hwang,
2022), table by table and claim by claim. `ffl reproduce --show` writes it from the files under `results/paper/`, one
per cell and seed; `ffl reproduce WHAT` runs the cells that are missing.

## Setting

Twenty clients, all of them in every round; ResNet-9; five local epochs per round, 50 rounds with CIFAR-10 and SVHN and
100 with the five domains of CIFAR-100; SGD with learning rate 1e-3, momentum 0.9, weight decay 1e-6, batches of 256,
the authors' augmentation. Train and test parts are merged, shuffled and cut 80/10/10. Non-IID shares are Dirichlet(0.5)
draws per class. After its local epochs every client's own model is tested on all test images of its data set or domain
under its own labels; we report the mean over clients after the last round. A classifier travels only where labels
agree. The methods follow the papers to the letter; [methods.md](methods.md) says what they leave open and where the
authors' code departs from their paper. Each departure is an option here, off unless a row says so.

In the tables an entry reads *paper / ours (difference)*; ± is the standard deviation between seeds where there are
several. The paper's ± is as printed there. Costs are gigabytes of a whole run: the paper's number, ours by the paper's
formula without the first download, and ours as really serialised."""

CHOICES = """## What was chosen, and how

What the paper leaves open was fixed before the runs above by short runs scored on the *validation* images, which no
table uses: one run per candidate, first seed, best mean over clients. Clustered-FL's thresholds follow from a pilot
that never splits. What is not listed has its preset's value; each result file holds its complete configuration."""

SIMILARITY = """Of each client's three most similar clients, what share is of its own domain? Somebody without
knowledge would find 3/19 = 0.158. `factors` in the result files has every round."""

ARCHITECTURES = """The paper trains one client on CIFAR-10's first IID partition for 20 epochs. Ours has 2,400 images
drawn at random, as many as such a partition, and we show 20 and 250 epochs, as many as Stand-Alone has in Table 1; both
are of the same run, and the paper's number stands beside both. The accuracy of a client alone goes up and down by some
points from round to round, so that after 250 epochs is the mean of its last five rounds (230 to 250 epochs)."""

SPARSITY = """Sizes count u, v and the entries of mu that survive the threshold lambda. With the penalty of Eq. 6 in
the gradient mu keeps shrinking; in the authors' code the penalty is computed on detached tensors, has no gradient, and
only the threshold is left. Both are here."""

HETEROGENEITY = """Equally initialised ResNet-9s are trained on MNIST partition 1 and on other data. A distance is that
of two updates since the start, each scaled to length 1: 0 for the same direction, 1.414 for unrelated ones. The paper
states neither sizes nor lengths; we take 2,400 images each and no augmentation. The paper's figures show no numbers."""

BEYOND = """Factorized-Peers ([fingerprints.md](fingerprints.md)) shares what beta shares, with those whose images look
like one's own, and measures BatchNorm's statistics anew on a client's plain training images after its local training
("settled"); columns marked so show what that alone does for others, one what is left without it. The harder settings
are variants of the five domains: 1, 2, 3, 6 and 8 clients per domain; Dirichlet(0.5) shares of the classes inside each
domain; one client whose training labels are drawn at random."""

HELPED = """What its clients gained, in points, each against the same client of the same seed; a client with random
labels does not count. *Own-domain weight* is what a client gives to itself and to others of its domain when models are
mixed, the mean over clients and rounds."""

DIFFERENCES = f"""## Where we differ by more than {CLOSE} points

For Factorized-FL and its beta the departures of the authors' code were switched on, all together and one by one, and
for the factorised networks of a single client that of its classifier; for FedFOMO the two choices that its sources
leave open ([methods.md](methods.md)), for pFedPara larger learning rates, for Per-FedAvg, on the domains, what PFLlib
does differently and its own paper's test. On the domains one row has TF32 instead of bfloat16 convolutions, which are
our own departure. *Comes within {CLOSE} points with* names those whose run agrees with the published number. The
authors published no code for the baselines, so for the others there is nothing to switch on."""

CLAIMS = """## Claims

A check compares two cells by the mean difference of their accuracies, paired by seed and client. Its standard error is
the larger of two: from all pairs as if they were independent, and between the seeds' means where there are several
(with a single client, from the size of its test and the ups and downs of its last five rounds). A check comes out as
claimed if the difference has the claimed sign and exceeds two standard errors. "Consistent" means no loss beyond two
standard errors or one point, a sharp drop five points or more; sizes must agree within 5%, costs within 2%. Single
clients are compared after 250 epochs, their sizes after 20 as well. A claim *holds* if all checks that were run do,
*holds in part* if some do, *does not hold* if none does. Clients of one seed share initial weights and, in the label
settings, test images, so with a single seed the error says nothing about other seeds."""
