package criproxy

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
)

// AlwaysPrecheck says whether the kubelet sends a pre-check for containers with imagePullPolicy
// Always (kubelets up to 1.31 do). Then a PullImage after a hidden pre-check may be one that must
// reach the registry.
type AlwaysPrecheck uint8

// The values of kubeletSkipsAlwaysPrecheck. The zero value is the default.
const (
	// AlwaysPrecheckAuto judges each call by its user agent.
	AlwaysPrecheckAuto AlwaysPrecheck = iota
	// AlwaysPrecheckSkipped is set for a kubelet from 1.32 on.
	AlwaysPrecheckSkipped
	// AlwaysPrecheckSent is set for a kubelet up to 1.31.
	AlwaysPrecheckSent
)

// firstSkipping is the minor version of grpc-go that came with kubelet 1.33. Kubelets 1.26 to
// 1.31 carry up to 1.65, and 1.32, which skips too, carries 1.65 as well: it is taken for old,
// which costs a manifest request and opens nothing.
const firstSkipping = 68

// skips reports whether a PullImage that follows a hidden pre-check is certainly a request to
// prove access, and not an Always that must reach the registry.
func (a AlwaysPrecheck) skips(ctx context.Context) bool {
	switch a {
	case AlwaysPrecheckSkipped:
		return true
	case AlwaysPrecheckSent:
		return false
	case AlwaysPrecheckAuto:
	}
	for _, agent := range metadata.ValueFromIncomingContext(ctx, "user-agent") {
		for field := range strings.FieldsSeq(agent) {
			version, ok := strings.CutPrefix(field, "grpc-go/")
			if !ok {
				continue
			}
			major, rest, _ := strings.Cut(version, ".")
			minor, _, _ := strings.Cut(rest, ".")
			n, err := strconv.Atoi(minor)
			return err == nil && major == "1" && n >= firstSkipping
		}
	}
	return false
}
