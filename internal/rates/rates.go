// Package rates computes the growth of counters between two readings. A counter only rises, unless
// its owner has restarted: then it counts from zero.
package rates

import "maps"

// Growth returns the increase of a counter since old.
func Growth(old, now uint64) uint64 {
	if now < old {
		return now
	}
	return now - old
}

// Rise is Growth for counters of faults: if the counter has fallen, no increase is certain.
func Rise(old, now uint64) uint64 { return now - min(old, now) }

// Since returns the growth of several counters since old. They restart together: if one of them has
// fallen or is missing, all count from zero. The result may be now itself.
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

// Per returns the rate of n events in some seconds; 0 if no time has passed.
func Per(n uint64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(n) / seconds
}

// Each calls fn for each object of now, with the object of old that has the same key, or nil.
func Each[T any, K comparable](old, now []T, key func(*T) K, fn func(old, now *T)) {
	before := make(map[K]*T, len(old))
	for i := range old {
		before[key(&old[i])] = &old[i]
	}
	for i := range now {
		fn(before[key(&now[i])], &now[i])
	}
}
