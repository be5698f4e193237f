// Package rates computes what was counted between two looks at counters. A counter only rises,
// unless what it belongs to began anew: then it counts from zero.
package rates

import "maps"

// Growth is the increase of a counter since old.
func Growth(old, now uint64) uint64 {
	if now < old {
		return now
	}
	return now - old
}

// Rise is the same for reports of faults: nothing of a counter that is less is sure, so it is 0.
func Rise(old, now uint64) uint64 { return now - min(old, now) }

// Since is what several counters have counted since old. They began anew together: if one of them
// is less than before, or missing, all count from zero. The result may be now itself.
func Since[M ~map[K]uint64, K comparable](old, now M) M {
	out := maps.Clone(now)
	for k, n := range old {
		if n > now[k] {
			return now
		}
		out[k] -= n
	}
	return out
}

// Per is how often something happened in a second if it happened n times in some; 0 if no time has
// passed.
func Per(n uint64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(n) / seconds
}

// Each calls fn for each object of now with the one of old that has the same key, nil if there is
// none.
func Each[T any, K comparable](old, now []T, key func(*T) K, fn func(old, now *T)) {
	before := make(map[K]*T, len(old))
	for i := range old {
		before[key(&old[i])] = &old[i]
	}
	for i := range now {
		fn(before[key(&now[i])], &now[i])
	}
}
