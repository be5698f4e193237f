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

// EffectsLog is Commands Supported and Effects, LID 05h, without Fabrics commands.
type EffectsLog struct {
	Admin [256]Effect
	IO    [256]Effect
	_     [2048]byte
}
