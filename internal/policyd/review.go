package policyd

import (
	"context"
	"time"

	"github.com/pullgate/pullgate/pkg/admission/files"
)

// A Reviewer asks the image review backends of a set of policy files. It may be called concurrently.
type Reviewer interface {
	// Review returns one result for each backend of the set that applies to the namespace and each image that it is asked about; none
	// if no backend applies. It must return when ctx ends. An error means that no backend could be asked, and becomes the status of the
	// call; the failure of a single backend is a result.
	Review(ctx context.Context, set *files.Set, r Request) ([]Result, error)
}

// A Request is what backends can be asked about the images of a container.
type Request struct {
	Namespace string
	// Images are the images of containers, VolumeImages those of image volumes, both as the pod has them.
	Images, VolumeImages []string
	// Annotations are the annotations of the pod for backends.
	Annotations map[string]string
}

// A Result is the answer of one backend about one image.
type Result struct {
	Backend, Image string
	// Allowed reports whether the image is approved; if Failed is true, by the failure policy of the backend.
	Allowed bool
	// Reason is that of the backend; if Failed is true, what failed.
	Reason           string
	AuditAnnotations map[string]string
	// Cached reports whether the answer is from the cache.
	Cached bool
	// Failed reports whether the backend gave no valid answer.
	Failed bool
	// Duration is how long the backend took, all attempts together.
	Duration time.Duration
}

// annotationMark is a part of the key of each annotation for backends.
const annotationMark = ".image-policy.k8s.io/"
