use crate::testing::{self, Answer, Server};
use bytes::Bytes;
use gristmill_ports::{ItemKey, ObjectPath, Objects as _, Table as _};
use std::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore]
async fn cold_start() {
    let url = testing::dynamodb();
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let t = Instant::now();
    let aws = testing::aws(&url);
    println!("with: {:?}", t.elapsed());
    let table = aws.table("t");
    println!("table: {:?}", t.elapsed());
    let _objects = aws.objects();
    println!("objects: {:?}", t.elapsed());
    let _invoker = aws.invoker();
    println!("invoker: {:?}", t.elapsed());
    let key = ItemKey { pk: "a".into(), sk: "b".into() };
    let r = table.read(std::slice::from_ref(&key)).await;
    println!("first read: {:?} {r:?}", t.elapsed());
    let t = Instant::now();
    let _ = table.read(&[key]).await;
    println!("second read: {:?}", t.elapsed());
    let _ = _objects.get(&ObjectPath::new("b", "k")).await;
    println!("object: {:?}", t.elapsed());
    // SAFETY-free: environment given from outside
    let t = Instant::now();
    let aws = crate::Aws::from_env().await;
    println!("from_env: {:?} {}", t.elapsed(), aws.is_ok());
    let t = Instant::now();
    let table = aws.unwrap().table("t");
    let r = table.read(&[ItemKey { pk: "a".into(), sk: "b".into() }]).await;
    println!("env read: {:?} {r:?}", t.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore]
async fn reads() {
    let data = Bytes::from(vec![7_u8; 64 << 20]);
    let served = data.clone();
    let server = Server::start(move |_, asked| {
        if asked.method == "PUT" { return Answer::status(200, ""); }
        let (a, b) = asked.header("range").trim_start_matches("bytes=").split_once('-').unwrap();
        let (a, b): (usize, usize) = (a.parse().unwrap(), b.parse().unwrap());
        Answer::Full(206, vec![("etag", "\"e\"".to_owned())], served.slice(a..=b))
    })
    .await;
    let objects = server.aws().objects();
    let path = ObjectPath::new("b", "k");
    for round in 0..4 {
        let t = Instant::now();
        for _ in 0..8 { objects.get_range(&path, 0..64 << 20, None).await.unwrap(); }
        let pieces = t.elapsed();
        let t = Instant::now();
        for _ in 0..8 {
            for i in 0..4 { objects.get_range(&path, i * (16 << 20)..(i + 1) * (16 << 20), None).await.unwrap(); }
        }
        let single = t.elapsed();
        let t = Instant::now();
        for _ in 0..8 { objects.put_if_absent(&path, data.clone(), "x").await.unwrap(); }
        println!("{round}: pieces {pieces:?} whole-16s {single:?} put {:?} per 512 MiB", t.elapsed());
    }
}
