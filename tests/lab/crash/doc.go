// Package crash checks the data that survives a power failure of a target. A Writer writes to the
// namespace of a Linux host. It keeps a journal of blocks acknowledged as durable, with marks in
// the log that dm-log-writes makes of the disk below the target. Replay makes the possible states
// of the disk after power failures from the log, and checks them with the journal.
package crash
