//! A Parquet file that is written by groups of rows, as columns.

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

/// The values of a column. Where some may be missing, a level for each row says whether it has one; of lists, there are
/// levels for each element, the second of which says whether it goes on with the row before.
pub(super) enum Column {
    Long(Vec<i64>),
    Int(Vec<i32>),
    Text(Vec<ByteArray>),
    OptionalText(Vec<ByteArray>, Vec<i16>),
    OptionalInt(Vec<i32>, Vec<i16>),
    List { values: Vec<ByteArray>, defined: Vec<i16>, repeated: Vec<i16> },
}

impl Column {
    pub(super) fn optional_text() -> Self {
        Self::OptionalText(Vec::new(), Vec::new())
    }

    pub(super) fn optional_int() -> Self {
        Self::OptionalInt(Vec::new(), Vec::new())
    }

    pub(super) fn list() -> Self {
        Self::List { values: Vec::new(), defined: Vec::new(), repeated: Vec::new() }
    }

    pub(super) fn push_text(&mut self, value: Option<&str>) {
        if let Self::OptionalText(values, levels) = self {
            levels.push(i16::from(value.is_some()));
            values.extend(value.map(ByteArray::from));
        }
    }

    pub(super) fn push_int(&mut self, value: Option<u32>) {
        if let Self::OptionalInt(values, levels) = self {
            levels.push(i16::from(value.is_some()));
            values.extend(value.map(u32::cast_signed));
        }
    }

    pub(super) fn push_list(&mut self, list: Vec<ByteArray>) {
        if let Self::List { values, defined, repeated } = self {
            // An empty list has one place without a value.
            let places = list.len().max(1);
            repeated.extend((0..places).map(|at| i16::from(at > 0)));
            defined.extend(std::iter::repeat_n(i16::from(!list.is_empty()), places));
            values.extend(list);
        }
    }
}

/// What the library writes to: it wants a destination that may go to another thread, which ours can't.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Buffer {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) struct Table<'w, W: Write> {
    out: &'w mut W,
    buffer: Buffer,
    writer: SerializedFileWriter<Buffer>,
}

impl<'w, W: Write> Table<'w, W> {
    pub(super) fn new(out: &'w mut W, schema: &str) -> io::Result<Self> {
        let schema = Arc::new(parse_message_type(schema).map_err(io::Error::other)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("grapnel ", env!("CARGO_PKG_VERSION")).to_owned());
        let buffer = Buffer::default();
        let writer = SerializedFileWriter::new(buffer.clone(), schema, Arc::new(properties.build()))
            .map_err(io::Error::other)?;
        Ok(Self { out, buffer, writer })
    }

    /// Writes rows: a column for each of the schema, in its order.
    pub(super) fn write(&mut self, columns: Vec<Column>) -> io::Result<()> {
        self.group(columns).map_err(io::Error::other)?;
        self.out.write_all(&self.buffer.take())
    }

    fn group(&mut self, columns: Vec<Column>) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        for column in columns {
            let Some(mut writer) = group.next_column()? else { break };
            match &column {
                Column::Long(values) => writer.typed::<Int64Type>().write_batch(values, None, None),
                Column::Int(values) => writer.typed::<Int32Type>().write_batch(values, None, None),
                Column::Text(values) => writer.typed::<ByteArrayType>().write_batch(values, None, None),
                Column::OptionalInt(values, levels) => {
                    writer.typed::<Int32Type>().write_batch(values, Some(levels), None)
                }
                Column::OptionalText(values, levels) => {
                    writer.typed::<ByteArrayType>().write_batch(values, Some(levels), None)
                }
                Column::List { values, defined, repeated } => {
                    writer.typed::<ByteArrayType>().write_batch(values, Some(defined), Some(repeated))
                }
            }?;
            writer.close()?;
        }
        group.close().map(drop)
    }

    /// Writes what stands at the end.
    pub(super) fn finish(self) -> io::Result<()> {
        self.writer.close().map_err(io::Error::other)?;
        self.out.write_all(&self.buffer.take())
    }
}
