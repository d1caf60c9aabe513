"""tf.data service on loopback: a dispatcher, a worker and this trainer, batches not compressed.

    --work service    batches of p1 as the worker makes them
    --work ingest     one batch of u8 pixels, again and again
"""

import socket
import subprocess
import sys

import tensorflow as tf

from peers import measure, tf_data

service = tf.data.experimental.service


def serve(role, port, dispatcher):
    if role == "dispatcher":
        server = service.DispatchServer(service.DispatcherConfig(port=int(port)))
    else:
        server = service.WorkerServer(service.WorkerConfig(
            dispatcher_address=f"localhost:{dispatcher}", worker_address=f"localhost:{port}", port=int(port)))
    print("up", flush=True)
    server.join()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start(role, port, dispatcher):
    child = subprocess.Popen([sys.executable, "-m", "peers.tf_service", role, port, dispatcher], stdout=subprocess.PIPE)
    if child.stdout.readline() != b"up\n":
        sys.exit(f"the {role} did not start")


def batches(args):
    if args.work == "service":
        return tf_data.dataset("p1", args.data), service.ShardingPolicy.DYNAMIC, tf_data.size_of
    pixels = tf.random.uniform([tf_data.BATCH, *tf_data.IMAGE_SIZE, 3], 0, 256, tf.int32)
    stored = tf.data.Dataset.from_tensors(tf.cast(pixels, tf.uint8)).repeat()
    return stored, service.ShardingPolicy.OFF, lambda batch: int(tf.size(batch))


def main():
    args = measure.arguments(["service", "ingest"])
    dispatcher = free_port()
    start("dispatcher", dispatcher, dispatcher)
    start("worker", free_port(), dispatcher)
    dataset, sharding, size_of = batches(args)
    address = f"grpc://localhost:{dispatcher}"
    received = dataset.apply(service.distribute(sharding, address, compression=None))
    measure.run(args, received.prefetch(tf_data.AUTOMATIC), size_of)


if __name__ == "__main__":
    if sys.argv[1] in ("dispatcher", "worker"):
        serve(*sys.argv[1:])
    else:
        main()
