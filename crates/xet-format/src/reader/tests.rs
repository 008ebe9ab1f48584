use super::{OutOfBytes, Reader, TrailingBytes};

#[test]
fn numbers_are_little_endian_and_taken_in_order() {
    let bytes: Vec<u8> = (1..=15).collect();
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.u8(), Ok(0x01));
    assert_eq!(reader.u16(), Ok(0x0302));
    assert_eq!(reader.u32(), Ok(0x0706_0504));
    assert_eq!(reader.u64(), Ok(0x0f0e_0d0c_0b0a_0908));
    assert_eq!(reader.offset(), 15);
    assert!(reader.is_at_end());
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn a_reader_that_lacks_one_byte_says_where_and_does_not_move() {
    let mut reader = Reader::new(&[0; 7]);
    reader.take(4).unwrap();
    let error = OutOfBytes { offset: 4, wanted: 4, left: 3 };
    assert_eq!(reader.u32(), Err(error));
    assert_eq!(reader.take(4), Err(error));
    assert_eq!(reader.sub(4).unwrap_err(), error);
    assert_eq!((reader.offset(), reader.left()), (4, 3));
}

#[test]
fn largest_possible_length_does_not_wrap() {
    let mut reader = Reader::new(&[0; 7]);
    reader.u8().unwrap();
    assert_eq!(reader.take(u64::MAX), Err(OutOfBytes { offset: 1, wanted: u64::MAX, left: 6 }));
}

#[test]
fn a_part_counts_its_offsets_from_the_start_of_the_whole() {
    let mut reader = Reader::new(&[0; 10]);
    reader.take(3).unwrap();
    let mut part = reader.sub(5).unwrap();
    assert_eq!(part.offset(), 3);
    part.u32().unwrap();
    assert_eq!(part.u16(), Err(OutOfBytes { offset: 7, wanted: 2, left: 1 }));
    assert_eq!(part.finish(), Err(TrailingBytes { offset: 7, count: 1 }));
    assert_eq!(reader.offset(), 8);
}

#[test]
fn taking_no_bytes_at_the_end_succeeds() {
    let mut reader = Reader::new(&[]);
    assert_eq!(reader.take(0), Ok(&[][..]));
    assert_eq!(reader.sub(0).unwrap().finish(), Ok(()));
    assert_eq!(reader.finish(), Ok(()));
}
