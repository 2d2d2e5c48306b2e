package gate

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/grpc/metadata"
)

// AlwaysPrecheck says whether the kubelet sends a pre-check for imagePullPolicy Always, as it does up to 1.31. If so, a
// PullImage after a hidden pre-check may have to reach the registry. Only the version of gRPC shows a kubelet's age.
type AlwaysPrecheck string

// The values of kubeletSkipsAlwaysPrecheck. The zero value is AlwaysAuto, too.
const (
	// AlwaysAuto judges each call by its user agent.
	AlwaysAuto    AlwaysPrecheck = "auto"
	AlwaysSkipped AlwaysPrecheck = "true"  // set for a kubelet from 1.32 on
	AlwaysSent    AlwaysPrecheck = "false" // set for a kubelet up to 1.31
)

// firstSkipping is the minor version of grpc-go in kubelet 1.33; 1.28 to 1.32 have up to 1.65. Kubelet 1.32 skips the
// pre-check too, but is treated like an older one, which costs a manifest request and opens nothing.
const firstSkipping = 68

// Skips reports whether a PullImage after a hidden pre-check certainly proves access, and is not an Always.
func (a AlwaysPrecheck) Skips(ctx context.Context) bool {
	switch a {
	case AlwaysSkipped:
		return true
	case AlwaysSent:
		return false
	case AlwaysAuto:
	}
	for _, agent := range metadata.ValueFromIncomingContext(ctx, "user-agent") {
		if _, version, ok := strings.Cut(" "+agent, " grpc-go/1."); ok {
			minor, _, _ := strings.Cut(version, ".")
			n, err := strconv.Atoi(minor)
			return err == nil && n >= firstSkipping
		}
	}
	return false
}
