package backend

import "github.com/nvmf-target/nvmf-target/internal/mem"

// ableDevice and ableChannel have every optional ability. That they compile shows that no two
// abilities collide.
type (
	ableDevice  struct{}
	ableChannel struct{}
)

var (
	_ interface {
		Changer
		Fencer
		SpaceReporter
	} = ableDevice{}
	_ interface {
		Canceler
		ZeroCopyReader
		ZeroCopyWriter
	} = ableChannel{}
)

func (ableDevice) Info() Info                           { return Info{} }
func (ableDevice) OpenChannel(Reactor) (Channel, error) { return ableChannel{}, nil }
func (ableDevice) Close() error                         { return nil }
func (ableDevice) Notify(func())                        {}
func (ableDevice) Fence() bool                          { return true }
func (ableDevice) Space() (int64, int64, error)         { return 0, 0, nil }

func (ableChannel) Submit([]*IO) int { return 0 }
func (ableChannel) Poll([]*IO) int   { return 0 }
func (ableChannel) Arm() bool        { return true }
func (ableChannel) Close() error     { return nil }
func (ableChannel) Cancel(*IO)       {}
func (ableChannel) StartZeroCopyRead(dst []mem.Segment, _, _ int64) ([]mem.Segment, bool) {
	return dst, false
}
func (ableChannel) EndZeroCopyRead([]mem.Segment, int64, int64) {}
func (ableChannel) WriterWaits() bool                           { return false }
func (ableChannel) StartZeroCopyWrite(dst []mem.Segment, _, _ int64) ([]mem.Segment, bool) {
	return dst, false
}
func (ableChannel) AbortZeroCopyWrite([]mem.Segment) {}
