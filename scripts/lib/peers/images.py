"""JPEGs and labels in tar files, one after the other in pairs, at any place."""

import os
import tarfile

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def tars(data):
    return sorted(map(str, (data / "images-tar").glob("*.tar")))


class TarImages:
    """A sequence of (JPEG bytes, label) which processes can share."""

    def __init__(self, paths):
        self.paths, self.places, self.files = paths, [], {}
        for path in paths:
            with tarfile.open(path) as tar:
                members = tar.getmembers()
            for image, label in zip(members[0::2], members[1::2], strict=True):
                self.places.append((path, image.offset_data, image.size, label.offset_data, label.size))

    def __len__(self):
        return len(self.places)

    def __getitem__(self, index):
        path, image_at, image_size, label_at, label_size = self.places[index]
        # A process opens its own.
        file = self.files.get((os.getpid(), path))
        if file is None:
            file = self.files[os.getpid(), path] = os.open(path, os.O_RDONLY)
        return os.pread(file, image_size, image_at), int(os.pread(file, label_size, label_at))

    def __getstate__(self):
        return {**self.__dict__, "files": {}}
