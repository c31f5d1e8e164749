/*
Copyright The cnat Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package connect

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

// pageSize is the number of objects to read at a time. A user can write objects of more than a
// megabyte that a list selects, because labels decide which.
const pageSize = 20

// Each calls do with each object that list lists, and reads only a few of them at a time.
func Each[L runtime.Object, T any](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions, do func(*T)) error {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	})
	// One page is read while the previous one is processed.
	pages.PageSize, pages.PageBufferSize = pageSize, 0
	return pages.EachListItem(ctx, options, func(object runtime.Object) error {
		do(any(object).(*T))
		return nil
	})
}
