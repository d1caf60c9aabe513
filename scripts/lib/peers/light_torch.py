"""torch: a Dataset of records in memory, and a DataLoader in the process of the trainer."""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from peers import light


class Table(Dataset):
    def __init__(self, columns):
        self.columns = {name: torch.from_numpy(column) for name, column in columns.items()}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, place):
        return {name: column[place] for name, column in self.columns.items()}


def padded(rows):
    return {"tokens": pad_sequence(rows, batch_first=True)}


def epochs(work, folder, count, _):
    torch.manual_seed(1)
    collate = None
    if work in ("clicks", "robots"):
        records = Table(light.columns(folder, work))
    elif work == "tokens":
        records, collate = light.parsed(folder), lambda some: padded([torch.tensor(row["tokens"]) for row in some])
    else:
        encode = light.tokenizer(folder)
        records, collate = light.texts(folder), lambda some: padded([torch.tensor(ids) for ids in encode(some)])
    loader = DataLoader(records, light.BATCH[work], shuffle=True, collate_fn=collate)
    for _ in range(count):
        yield loader
