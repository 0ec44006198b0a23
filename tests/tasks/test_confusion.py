import torch

from factorized_fl.tasks.confusion import count_confusion


def test_rows_are_true_and_columns_predicted_classes_and_padding_does_not_count() -> None:
    answers = torch.tensor([[0, 2, 1, 1], [2, 2, 0, 0]])
    labels = torch.tensor([[0, 0, 1, 2], [2, 1, -100, -100]])
    counts = torch.zeros(2, 3, 3, dtype=torch.int64)
    count_confusion(counts, torch.nn.functional.one_hot(answers, 3).float(), labels)
    assert counts.tolist() == [[[1, 0, 1], [0, 1, 0], [0, 1, 0]], [[0, 0, 0], [0, 0, 1], [0, 0, 1]]]
    count_confusion(counts, torch.nn.functional.one_hot(answers[:, :1], 3).float(), labels[:, :1])
    assert counts[:, 0, 0].tolist() == [2, 0]
    assert counts[:, 2, 2].tolist() == [0, 2]
    assert counts.sum().item() == 8
    assert counts.dtype == torch.int64
