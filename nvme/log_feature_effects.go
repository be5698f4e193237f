package nvme

// FeatureEffectsSize is the size of log 12h.
const FeatureEffectsSize = 1024

// FeatureEffect is a FID Supported and Effects data structure (Base section 5.1.12.1.18).
type FeatureEffect uint32

// The bits of a FeatureEffect.
const (
	FeatureSupported       FeatureEffect = 1 << 0  // FSUPP
	FeatureScopeNamespace  FeatureEffect = 1 << 20 // FSP, bits 31:20
	FeatureScopeController FeatureEffect = 1 << 21
	FeatureScopeSubsystem  FeatureEffect = 1 << 25
)

// FeatureEffectsLog is Feature Identifiers Supported and Effects, LID 12h.
type FeatureEffectsLog [256]FeatureEffect
