-- A small shop that sells to other shops. Everything in it is invented.
CREATE TABLE customers (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  city TEXT NOT NULL,
  joined INTEGER NOT NULL,             -- year
  premium INTEGER NOT NULL             -- 1 yes, 0 no
);
CREATE TABLE products (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  category TEXT NOT NULL,
  price REAL NOT NULL,
  stock INTEGER NOT NULL
);
CREATE TABLE orders (
  id INTEGER PRIMARY KEY,
  customer_id INTEGER NOT NULL REFERENCES customers (id),
  product_id INTEGER NOT NULL REFERENCES products (id),
  quantity INTEGER NOT NULL,
  status TEXT NOT NULL,                -- open, paid, shipped or cancelled
  day TEXT NOT NULL                    -- YYYY-MM-DD
);

INSERT INTO customers VALUES
  (1, 'Harbour Cafe', 'Oslo', 2019, 1),
  (2, 'Oak School', 'Leeds', 2021, 0),
  (3, 'Mill Bakery', 'Lyon', 2023, 0),
  (4, 'North Clinic', 'Oslo', 2020, 1),
  (5, 'Corner Books', 'Leeds', 2023, 0),
  (6, 'Garden Hotel', 'Turin', 2016, 1),
  (7, 'River School', 'Lyon', 2022, 0),
  (8, 'Sun Studio', 'Leeds', 2024, 1),
  (9, 'Stone Museum', 'Ghent', 2022, 0),
  (10, 'Lake Hostel', 'Turin', 2024, 0),
  (11, 'Star Cinema', 'Oslo', 2021, 0),
  (12, 'Bridge Lab', 'Porto', 2025, 1),
  (13, 'Field Market', 'Lyon', 2017, 0);

INSERT INTO products VALUES
  (1, 'desk lamp', 'office', 32.5, 40),
  (2, 'office chair', 'office', 149.0, 12),
  (3, 'notebook', 'office', 3.5, 500),
  (4, 'garden hose', 'garden', 24.0, 0),
  (5, 'flower pot', 'garden', 6.0, 85),
  (6, 'rake', 'garden', 18.0, 17),
  (7, 'tea cup', 'kitchen', 4.5, 220),
  (8, 'kettle', 'kitchen', 45.0, 9),
  (9, 'frying pan', 'kitchen', 38.0, 0),
  (10, 'projector', 'electronics', 420.0, 4),
  (11, 'speaker', 'electronics', 85.0, 15),
  (12, 'cable', 'electronics', 8.0, 310);

INSERT INTO orders VALUES
  (1, 1, 7, 48, 'shipped', '2026-01-12'),
  (2, 2, 3, 120, 'shipped', '2026-01-15'),
  (3, 3, 8, 2, 'paid', '2026-01-20'),
  (4, 4, 2, 6, 'cancelled', '2026-01-28'),
  (5, 2, 10, 3, 'shipped', '2026-02-03'),
  (6, 6, 5, 30, 'paid', '2026-02-03'),
  (7, 1, 8, 3, 'shipped', '2026-02-11'),
  (8, 5, 1, 8, 'open', '2026-02-17'),
  (9, 7, 3, 75, 'shipped', '2026-02-19'),
  (10, 8, 11, 2, 'cancelled', '2026-02-25'),
  (11, 6, 6, 4, 'shipped', '2026-03-02'),
  (12, 9, 1, 10, 'paid', '2026-03-05'),
  (13, 2, 2, 4, 'open', '2026-03-09'),
  (14, 10, 7, 60, 'shipped', '2026-03-14'),
  (15, 4, 12, 25, 'shipped', '2026-03-14'),
  (16, 1, 5, 12, 'open', '2026-03-21'),
  (17, 11, 10, 2, 'paid', '2026-03-30'),
  (18, 7, 1, 5, 'cancelled', '2026-04-02'),
  (19, 2, 12, 40, 'shipped', '2026-04-08'),
  (20, 8, 11, 6, 'open', '2026-04-08'),
  (21, 6, 7, 36, 'paid', '2026-04-16'),
  (22, 3, 5, 9, 'shipped', '2026-04-22'),
  (23, 12, 2, 3, 'open', '2026-04-27'),
  (24, 9, 9, 5, 'paid', '2026-04-29');
