"""How well the model of `headrace advise` predicts: one calibration run against real runs of other clusters.

    python -m bench.advise [--repeats 5] [--seconds 2.4] [--output FILE]

Every run is a real job of the local engine. Its training script works through four workloads, one after the other, with
costs that are set (bench/advise/code): samples that wait as for a disk, samples that compute, samples that do both, and
samples that are large and travel over a network of 200 Mbit/s. CPU 0 trains, CPU 1 is shared by all data hosts. A
waiting worker needs no core, so that there can be more workers than the machine has cores, truthfully; what computes
competes for real ones.

The cluster without data hosts of the first round is the calibration: the model sees the metrics of that run and nothing
else, and predicts all workloads on the other clusters. Those are run in turn (round after round, not one after the
other), and the median of the rounds is compared with the prediction. Raw data go to bench/results/.
"""
