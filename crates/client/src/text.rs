//! Which characters may go to a terminal.

/// Whether a terminal displays this character, rather than interprets it.
///
/// False for control characters, line breaks, invisible characters, and characters that change the
/// direction of text: a name with U+202E reads backwards from there on.
#[must_use]
pub fn is_shown(character: char) -> bool {
    let is_format = matches!(character,
        // Marks, embeddings, overrides and isolates of bidirectional text (UAX #9), and separators
        // of lines and paragraphs.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}'
        // Byte order mark, annotations and tags, which are invisible.
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !character.is_control() && !is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_of_terminals_and_of_direction_are_not_shown() {
        for character in ['a', 'ö', '漢', '→', ' ', '\u{200d}'] {
            assert!(is_shown(character), "{character:?}");
        }
        for character in
            ['\n', '\u{1b}', '\u{7f}', '\u{9b}', '\u{61c}', '\u{200e}', '\u{202a}', '\u{202e}', '\u{2066}', '\u{2069}']
        {
            assert!(!is_shown(character), "{character:?}");
        }
    }
}
