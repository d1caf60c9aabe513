"""Deletes every object below a prefix of a bucket, with all versions: empty_bucket.py AWS BUCKET [PREFIX].

`aws s3 rm --recursive` sends a request for each object, which takes hours for a million, and leaves versions. This
sends pages of 1,000, eight at a time. AWS is the program to call.
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile

PAGE, AT_ONCE = 1000, 8


def call(aws, *arguments):
    done = subprocess.run([aws, "s3api", *arguments, "--output", "json"], stdout=subprocess.PIPE)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout or b"{}")


def delete(aws, bucket, page):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "page.json")
        with open(path, "w") as file:
            json.dump({"Objects": page, "Quiet": True}, file)
        said = call(aws, "delete-objects", "--bucket", bucket, "--delete", f"file://{path}")
    # The call succeeds even if no object could be deleted.
    return said.get("Errors") or []


def main(aws, bucket, prefix=""):
    deleted = 0
    while True:
        listed = call(
            aws, "list-object-versions", "--bucket", bucket, "--prefix", prefix, "--max-items", str(PAGE * AT_ONCE)
        )
        found = (listed.get("Versions") or []) + (listed.get("DeleteMarkers") or [])
        found = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in found]
        if not found:
            return
        pages = [found[at : at + PAGE] for at in range(0, len(found), PAGE)]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for errors in pool.map(lambda page: delete(aws, bucket, page), pages):
                if errors:
                    first = errors[0]
                    sys.exit(f"cannot delete s3://{bucket}/{first.get('Key')}: {first.get('Message')}")
        deleted += len(found)
        print(f"deleted {deleted} objects of s3://{bucket}/{prefix}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
