use std::fs::File;
use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;

use socket2::SockRef;

use super::portable;

fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Both ends of a connection within this process, the server's first.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (listener.accept().unwrap().0, client)
}

#[test]
fn portable_reads_and_advice_change_no_byte() {
    let file = file(b"some bytes");
    let mut bytes = *b"before";
    assert_eq!(portable::read_cached(&file, &mut bytes, 2), 0);
    assert_eq!(&bytes, b"before");
    portable::begin_writeback(&file, &(0..10));
    assert_eq!(file.read_at(&mut bytes, 4).unwrap(), 6);
    assert_eq!(&bytes, b" bytes");
}

#[test]
fn portable_direct_writes_are_unsupported_and_off() {
    let file = file(b"");
    assert_eq!(portable::set_direct(&file, true).unwrap_err().kind(), ErrorKind::Unsupported);
    portable::set_direct(&file, false).unwrap();
}

#[test]
fn portable_socket_buffers_a_bounded_number_of_bytes() {
    const MAX_LEN: u32 = 256 << 10;
    let (mut server, client) = connection();
    // A small buffer, so that few bytes are in flight.
    SockRef::from(&client).set_recv_buffer_size(4 << 10).unwrap();
    portable::bound_unsent(&server, MAX_LEN).unwrap();
    server.set_nonblocking(true).unwrap();
    let mut taken_len = 0;
    while let Ok(len) = server.write(&[0; 4096]) {
        taken_len += len;
    }
    // Linux doubles the length for its bookkeeping. The other end received up to 128 KiB before its
    // buffer was made small.
    assert!((1..=3 * MAX_LEN as usize).contains(&taken_len), "{taken_len}");
}

#[cfg(target_os = "linux")]
#[test]
fn linux_reads_from_memory_what_was_just_written() {
    use super::linux;
    let mut file = file(b"some bytes");
    let mut bytes = [0; 6];
    let read_len = linux::read_cached(&file, &mut bytes, 4);
    // Some file systems do not support the call, and nothing is read.
    assert!(read_len == 0 || &bytes[..read_len] == b" bytes", "{read_len}");
    linux::begin_writeback(&file, &(0..10));
    assert!(linux::set_direct(&file, false).is_ok());
    file.write_all(b"!").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 11);
}
