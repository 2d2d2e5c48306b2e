package kubelet

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
)

// AlwaysPrecheck says whether the kubelet sends a pre-check for containers with imagePullPolicy Always (kubelets up to
// 1.31 do). If so, a PullImage after a hidden pre-check may be one that must reach the registry.
type AlwaysPrecheck string

// The values of kubeletSkipsAlwaysPrecheck. The zero value is Auto, too.
const (
	// Auto judges each call by its user agent.
	Auto AlwaysPrecheck = "auto"
	// Skipped is set for a kubelet from 1.32 on.
	Skipped AlwaysPrecheck = "true"
	// Sent is set for a kubelet up to 1.31.
	Sent AlwaysPrecheck = "false"
)

// firstSkipping is the minor version of grpc-go in kubelet 1.33. Kubelets 1.28 to 1.32 have up to 1.65. Kubelet 1.32
// skips the pre-check too, but is treated like an older one, which costs a manifest request and opens nothing.
const firstSkipping = 68

// Skips reports whether a PullImage that follows a hidden pre-check is certainly a request to
// prove access, and not an Always that must reach the registry.
func (a AlwaysPrecheck) Skips(ctx context.Context) bool {
	switch a {
	case Skipped:
		return true
	case Sent:
		return false
	case Auto:
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
