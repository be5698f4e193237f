package nvme

// EffectsLogSize is the size of log 05h.
const EffectsLogSize = 4096

// Effect is a Commands Supported and Effects data structure (Base section 5.1.12.1.6).
type Effect uint32

// The bits of an Effect.
const (
	EffectSupported     Effect = 1 << 0 // CSUPP
	EffectContentChange Effect = 1 << 1 // LBCC: logical block content
)

// EffectsLog is the Commands Supported and Effects log, LID 05h. A Fabrics command is not part of
// it.
type EffectsLog struct {
	Admin [256]Effect
	IO    [256]Effect
	_     [2048]byte
}
