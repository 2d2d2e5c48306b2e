package admission

import (
	"slices"
	"sync"
)

// Limits of admitted. A kubelet runs some hundreds of pods, and a pod's image can be changed while it runs.
const (
	maxPods       = 4096
	maxContainers = 256 // per pod
)

// admitted holds the containers that pods have started, with the ID of the image. The zero value is empty and ready to
// use; it may be used concurrently.
type admitted struct {
	mu sync.RWMutex
	of map[string][]container // by pod UID; the latest container is the last one
}

// A container with the name "" is one that mounts the image.
type container struct{ name, imageID string }

func (a *admitted) add(podUID, name, imageID string) {
	if podUID != "" && name != "" && imageID != "" {
		a.note(podUID, container{name, imageID})
	}
}

// note notes a container. Above the limit, a pod loses the container that was noted first, and a further pod is not
// noted.
func (a *admitted) note(podUID string, c container) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list, known := a.of[podUID]
	if slices.Contains(list, c) {
		return
	}
	switch {
	case !known && len(a.of) == maxPods:
		return
	case len(list) == maxContainers:
		list = slices.Delete(list, 0, 1)
	case a.of == nil:
		a.of = map[string][]container{}
	}
	a.of[podUID] = append(list, c)
}

func (a *admitted) has(podUID, name, imageID string) bool {
	if podUID == "" || name == "" || imageID == "" {
		return false
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Contains(a.of[podUID], container{name, imageID})
}

// hasMounted reports whether a pod has started containers that mount these images.
func (a *admitted) hasMounted(podUID string, images []Image) bool {
	if len(images) == 0 {
		return true
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return !slices.ContainsFunc(images, func(i Image) bool { return i.ID == "" || !slices.Contains(a.of[podUID], container{imageID: i.ID}) })
}

// hasImage reports whether a pod has started a container that runs on an image or mounts it.
func (a *admitted) hasImage(podUID, imageID string) bool {
	if podUID == "" || imageID == "" {
		return false
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.ContainsFunc(a.of[podUID], func(c container) bool { return c.imageID == imageID })
}

// hasPod reports whether a pod has started a container.
func (a *admitted) hasPod(podUID string) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return len(a.of[podUID]) > 0
}

func (a *admitted) forget(podUID string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, podUID)
}
